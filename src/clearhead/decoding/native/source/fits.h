// Whether the parts of a model fit together: nothing behind the door looks at their sizes again.
#pragma once

#include "model.h"

namespace clearhead {

// Has this matrix the right size, and was it packed as the others were?
inline bool is(const PackedMatrix* matrix, int64_t outputs, int64_t inputs, const PackedMatrix* like) {
  return matrix && matrix->outputs == outputs && matrix->inputs == inputs && matrix->kind == like->kind &&
         matrix->kernels == like->kernels;
}

inline bool layer_fits(const Model& m, const Layer& layer, bool cross) {
  const int64_t queries = int64_t(m.heads) * m.key_dim, mixed = int64_t(m.heads) * m.value_dim;
  const int64_t kept = int64_t(m.groups) * (int64_t(m.key_dim) + m.value_dim);
  const bool own = is(layer.query_key_value, queries + kept, m.width, m.output) &&
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
