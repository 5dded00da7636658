// A model as the engine sees it: packed matrices, norms, tables, and how its dials stand.
//
// The structs mirror those of the Python side field by field, in this order.
#pragma once

#include "matrix.h"

namespace clearhead {

struct Layer {
  const PackedMatrix* query_key_value;
  const PackedMatrix* attention_output;
  const PackedMatrix* cross_query;      // nullptr: no cross-attention
  const PackedMatrix* cross_key_value;
  const PackedMatrix* cross_output;
  const PackedMatrix* inner;            // gated: the gate's outputs first, then the inner layer's
  const PackedMatrix* outer;
  Norm attention_norm, cross_norm, feedforward_norm;
};

struct Model {
  int32_t width, vocabulary, source_vocabulary;
  int32_t encoder_layers, decoder_layers;  // no encoder layers and no source table: a decoder alone
  int32_t heads, groups, key_dim, value_dim;
  int32_t inner, gated, activation;
  int32_t rms, norm_first, rotary_halves, has_source;
  float eps, scale, softcap, embedding_factor, output_factor;
  const float* source_table;
  const float* target_table;
  Norm source_norm, target_norm, encoder_norm, decoder_norm;
  const Layer* encoder;
  const Layer* decoder;
  const PackedMatrix* output;
  const PackedMatrix* source_rows;  // embeddings as columns of an int8 matrix; nullptr: rows of the table
  const PackedMatrix* target_rows;
  int64_t file;           // an open file whose rows are read when they are needed, for tables that have an offset
  int64_t source_offset;  // bytes before the table; 0: it lies in memory
  int64_t target_offset;
};

// What depends on positions, for all positions below `capacity`; nullptr where a model has no such thing.
struct Tables {
  int64_t capacity;
  const float* source;        // (capacity, width) added to embeddings
  const float* target;
  const float* cosine;        // (capacity, key_dim / 2)
  const float* sine;
  const float* encoder_bias;  // (heads, 2·capacity − 1), key position − query position + capacity − 1
  const float* decoder_bias;
};

}  // namespace clearhead
