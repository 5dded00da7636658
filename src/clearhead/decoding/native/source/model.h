// A model as the engine sees it: packed matrices, norms, tables, and how its dials stand; and whether its parts fit
// together, since nothing behind the border looks at their sizes again.
//
// The structs mirror those of the Python side field by field, in this order.
#pragma once

#include "kernels.h"
#include "memory.h"

namespace clearhead {

// A packed weight matrix: a view on memory that belongs to somebody else, private or shared with other processes. It
// begins at a cache line as each part of it does: weights, bias, and for int8 scale and sums.
struct PackedMatrix : Matrix {
  const Kernels* kernels;

  PackedMatrix(const Kernels* set, int outputs_, int inputs_, Kind kind_, char* memory)
      : Matrix{outputs_, inputs_, (outputs_ + set->panel - 1) / set->panel, kind_, set->panel_bytes(kind_, inputs_),
               memory, nullptr, nullptr, nullptr},
        kernels(set) {
    char* next = memory + lines(size());
    bias = reinterpret_cast<float*>(next);
    if (kind != INT8) return;
    scale = reinterpret_cast<float*>(next + lines(column_bytes()));
    sums = reinterpret_cast<int32_t*>(next + 2 * lines(column_bytes()));
  }

  // Bytes of all of it.
  static size_t bytes_for(const Kernels* set, int outputs, int inputs, Kind kind) {
    const size_t panels = (outputs + set->panel - 1) / set->panel;
    return lines(panels * set->panel_bytes(kind, inputs)) + (kind == INT8 ? 3 : 1) * lines(panels * set->panel * 4);
  }

  size_t size() const { return panels * panel_bytes; }  // bytes of the weights

  // `beyond` is the bias of columns that do not exist: −∞ keeps them out of a softmax.
  void set_bias(const float* from, float beyond) {
    for (int c = 0; c < panels * kernels->panel; ++c) bias[c] = c >= outputs ? beyond : from ? from[c] : 0.0f;
  }

  // The panels from `first` on as a matrix of their own.
  Matrix from_panel(int first) const {
    const int column = first * kernels->panel;
    Matrix part = *this;
    part.outputs -= column;
    part.panels -= first;
    part.weights += first * panel_bytes;
    part.bias += column;
    if (kind == INT8) {
      part.scale += column;
      part.sums += column;
    }
    return part;
  }

 private:
  static size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
  size_t column_bytes() const { return size_t(panels) * kernels->panel * 4; }  // a number for each column
};

struct Layer {
  const PackedMatrix* query_key_value;  // compressed queries: their latents instead of the queries
  const PackedMatrix* queries;          // from their latents; nullptr: they are not compressed
  const PackedMatrix* attention_output;
  const PackedMatrix* cross_query;  // nullptr: no cross-attention
  const PackedMatrix* cross_key_value;
  const PackedMatrix* cross_output;
  const PackedMatrix* inner;            // gated: the gate's outputs first, then the inner layer's
  const PackedMatrix* outer;
  Norm attention_norm, cross_norm, feedforward_norm;
  Norm latent_norm;  // of what is stored, where values are a part of keys
  Norm query_norm;   // of the latents of queries
};

struct Model {
  int32_t width, vocabulary, source_vocabulary;
  int32_t encoder_layers, decoder_layers;  // no encoder layers and no source table: a decoder alone
  int32_t heads, groups, key_dim, value_dim;
  int32_t inner, gated, activation;
  int32_t rms, norm_first, rotary_halves, has_source;
  int32_t latent;      // so many features of a key are normed before it is stored, and are its value; 0: values lie apart
  int32_t rotary_dim;  // so many features at the end of a head are turned
  int32_t query_latent;  // so many features from which all queries are computed; 0: they are not compressed
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

  int stored_values() const { return latent ? 0 : groups * value_dim; }  // of a token, beside its keys
};

// What depends on positions, for all positions below `capacity`; nullptr where a model has no such thing.
struct Tables {
  int64_t capacity;
  const float* source;        // (capacity, width) added to embeddings
  const float* target;
  const float* cosine;        // (capacity, rotary_dim / 2)
  const float* sine;
  const float* encoder_bias;  // (heads, 2·capacity − 1), key position − query position + capacity − 1
  const float* decoder_bias;
};

// Bytes that a step reads of a model.
inline size_t decoder_bytes(const Model& model) {
  size_t total = model.output->size();
  for (int i = 0; i < model.decoder_layers; ++i) {
    const Layer& one = model.decoder[i];
    for (const PackedMatrix* matrix :
         {one.query_key_value, one.queries, one.attention_output, one.cross_query, one.cross_output, one.inner, one.outer})
      if (matrix) total += matrix->size();
  }
  return total;
}

// Has this matrix the right size, and was it packed as the others were?
inline bool is(const PackedMatrix* matrix, int64_t outputs, int64_t inputs, const PackedMatrix* like) {
  return matrix && matrix->outputs == outputs && matrix->inputs == inputs && matrix->kind == like->kind &&
         matrix->kernels == like->kernels;
}

inline bool layer_fits(const Model& m, const Layer& layer, bool cross) {
  const int64_t queries = int64_t(m.heads) * m.key_dim, mixed = int64_t(m.heads) * m.value_dim;
  const int64_t kept = int64_t(m.groups) * (int64_t(m.key_dim) + (m.latent ? 0 : m.value_dim));
  if (m.latent && !layer.latent_norm.weight) return false;
  if (m.query_latent && !(layer.query_norm.weight && is(layer.queries, queries, m.query_latent, m.output))) return false;
  const int64_t first = m.query_latent ? m.query_latent : queries;
  const bool own = is(layer.query_key_value, first + kept, m.width, m.output) &&
                   is(layer.attention_output, m.width, mixed, m.output) &&
                   is(layer.inner, int64_t(m.inner) * (m.gated ? 2 : 1), m.width, m.output) &&
                   is(layer.outer, m.width, m.inner, m.output);
  return own && (!cross || (is(layer.cross_query, queries, m.width, m.output) &&
                            is(layer.cross_key_value, kept, m.width, m.output) &&
                            is(layer.cross_output, m.width, mixed, m.output)));
}

// The first part that does not fit; nullptr: all do.
inline const char* misfit(const Model& m) {
  constexpr int MOST = 1 << 24;  // products of two of these are counted in 64 bits, sums of a few in 32
  for (const int32_t size : {m.width, m.vocabulary, m.heads, m.groups, m.key_dim, m.value_dim, m.inner})
    if (size < 1 || size > MOST) return "sizes";
  const int64_t wide = int64_t(m.heads) * (int64_t(m.key_dim) + m.value_dim) * 2;
  if (m.heads % m.groups || wide > MOST || m.encoder_layers < 0 || m.decoder_layers < 0) return "sizes";
  if (m.rotary_dim < 0 || m.rotary_dim > m.key_dim || m.rotary_dim % 2) return "sizes";
  if (m.latent && (m.latent != m.value_dim || m.latent > m.key_dim || m.groups != 1 || m.has_source)) return "latents";
  if (m.query_latent < 0 || m.query_latent > MOST || (m.query_latent && !m.latent)) return "latents";
  if (m.activation < NO_ACTIVATION || m.activation > TANH) return "activation";
  if (!m.output || !is(m.output, m.vocabulary, m.width, m.output)) return "output";
  const bool has_source = m.source_table || m.source_rows || m.source_offset > 0;
  if (m.has_source && (m.source_vocabulary < 1 || !has_source)) return "source embedding";
  if (!m.target_table && !m.target_rows && m.target_offset <= 0) return "target embedding";
  if (m.source_rows && (m.source_rows->outputs < m.source_vocabulary || m.source_rows->inputs != m.width))
    return "source embedding";
  if (m.target_rows && (m.target_rows->outputs < m.vocabulary || m.target_rows->inputs != m.width))
    return "target embedding";
  for (int i = 0; i < m.encoder_layers; ++i)
    if (!layer_fits(m, m.encoder[i], false)) return "encoder layers";
  for (int i = 0; i < m.decoder_layers; ++i)
    if (!layer_fits(m, m.decoder[i], m.has_source)) return "decoder layers";
  return nullptr;
}

}  // namespace clearhead
