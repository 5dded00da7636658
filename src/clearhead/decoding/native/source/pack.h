// Weights laid out for the products of a decoding step, as float32, bfloat16 or int8.
//
// Outputs are dealt into panels of PANEL columns; inside a panel the inputs follow each other, so that a product
// reads every weight once and in order:
//
//   float32    [panel][input][column]
//   bfloat16   [panel][input][vector pair][lane]  the two columns of a lane share a word, lower half first
//   int8       [panel][input / n][column][n]      n inputs side by side, as the set's instructions want (int8.h)
//
// int8 weights are w ≈ scale(column) · q with q in −127..127; `sums` hold Σ q of each column, with which the zero
// point of the activations is taken off again.
#pragma once

#include "int8.h"

namespace clearhead {
namespace {

// Bytes that one round of the loop over inputs reads: an input's weights for a panel, or a few inputs' (int8).
inline size_t row_bytes(Kind kind) { return PANEL * (kind == FLOAT32 ? 4 : kind == BFLOAT16 ? 2 : TOGETHER); }
inline size_t panel_bytes(Kind kind, int inputs) {
  return row_bytes(kind) * (kind == INT8 ? byte_rounds(inputs) : inputs);
}
inline const char* panel_of(const Matrix& m, int panel) { return m.weights + panel * m.panel_bytes; }

inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return uint16_t(bits >> 16) | 0x40;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to the nearest, ties to even
}

// Where a column of a panel lies among its bfloat16 weights.
inline int place_of_half(int column) {
  const int pair = column / (2 * LANES), inside = column % (2 * LANES);
  return (pair * LANES + inside % LANES) * 2 + inside / LANES;
}

// One panel of float32 or bfloat16 weights. w (outputs, inputs) lies row by row.
template <class W, class Convert, class Place>
void pack_floats(const Matrix& m, int panel, const float* w, Convert convert, Place place) {
  W* out = reinterpret_cast<W*>(m.weights + panel * m.panel_bytes);
  const int columns = least(PANEL, m.outputs - panel * PANEL);
  if (columns < PANEL) std::memset(out, 0, sizeof(W) * PANEL * m.inputs);
  for (int first = 0; first < m.inputs; first += 16) {  // a few inputs at a time: both sides stay in the cache
    const int last = least(m.inputs, first + 16);
    for (int c = 0; c < columns; ++c) {
      const float* from = w + size_t(panel * PANEL + c) * m.inputs;
      const int at = place(c);
      for (int i = first; i < last; ++i) out[size_t(i) * PANEL + at] = convert(from[i]);
    }
  }
}

typedef int8_t SmallInts __attribute__((vector_size(LANES)));

inline void pack_bytes(const Matrix& m, int panel, const float* w) {
  int8_t* out = reinterpret_cast<int8_t*>(m.weights + panel * m.panel_bytes);
  std::memset(out, 0, m.panel_bytes);
  for (int c = 0; c < PANEL; ++c) {
    const int column = panel * PANEL + c;
    m.scale[column] = 0;
    m.sums[column] = 0;
    if (column >= m.outputs) continue;
    const float* from = w + size_t(column) * m.inputs;
    Floats high{}, strange{};
    each_vector(from, m.inputs, [&](Floats v, int) {
      high = larger(high, larger(v, -v));
      strange += v * 0.0f;  // not a number if any weight is not
    });
    const float peak = largest(high), odd = sum(strange);
    m.scale[column] = (peak < SMALLEST ? 0.0f : peak / 127.0f) + odd;
    if (peak < SMALLEST || odd != 0) continue;  // infinite numbers and NaN have no whole ones: the scale says so
    const float inverse = 127.0f / peak;
    Ints totals{};
    for (int first = 0; first < m.inputs; first += 256) {
      int8_t some[256] = {};
      const int count = least(256, m.inputs - first);
      each_vector(from + first, count, [&](Floats v, int i) {
        const Floats turned = rounded(v * inverse);
        const Ints q = __builtin_convertvector(turned + (turned < 0.0f ? all(-0.5f) : all(0.5f)), Ints);
        const SmallInts small = __builtin_convertvector(q, SmallInts);
        std::memcpy(some + i, &small, sizeof(small));
        totals += q;
      });
      for (int i = 0; i < count; i += TOGETHER)
        std::memcpy(out + (size_t(first + i) / TOGETHER * PANEL + c) * TOGETHER, some + i, TOGETHER);
    }
    for (int lane = 0; lane < LANES; ++lane) m.sums[column] += totals[lane];
  }
}

inline void unpack_column(const Matrix& m, int column, float* to) {
  const int c = column % PANEL;
  const auto* panel = reinterpret_cast<const int8_t*>(m.weights + column / PANEL * m.panel_bytes);
  const float scale = m.scale[column];
  for (int first = 0; first < m.inputs; first += TOGETHER) {
    const int8_t* some = panel + (size_t(first) / TOGETHER * PANEL + c) * TOGETHER;
    const int count = least(TOGETHER, m.inputs - first);
    for (int i = 0; i < count; ++i) to[first + i] = scale * float(some[i]);
  }
}

inline void pack_panel(const Matrix& m, int panel, const float* w) {
  if (m.kind == FLOAT32)
    pack_floats<float>(m, panel, w, [](float v) { return v; }, [](int c) { return c; });
  if (m.kind == BFLOAT16) pack_floats<uint16_t>(m, panel, w, to_bfloat16, place_of_half);
  if (m.kind == INT8) pack_bytes(m, panel, w);
}

}  // namespace
}  // namespace clearhead
