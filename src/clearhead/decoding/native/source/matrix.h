// A weight matrix laid out for the products of a decoding step, as float32, bfloat16 or int8.
//
// Outputs are dealt into panels of PANEL columns; inside a panel the inputs follow each other, so that a product
// reads every weight once and in order:
//
//   float32    [panel][input][column]
//   bfloat16   [panel][input][vector pair][lane]  the two columns of a lane share a word, lower half first
//   int8       [panel][input / 4][column][4]      four inputs side by side, as the dot-product unit wants
//
// int8 weights are w ≈ scale(column) · q with q in −127..127; `sums` hold Σ q of each column, with which the zero
// point of the activations is taken off again.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace clearhead {

#if defined(__AVX512F__)
constexpr int VECTORS = 4, ROWS = 6;  // a tile is 6 × 64: 24 of the 32 registers hold sums
#elif defined(__AVX__)
constexpr int VECTORS = 2, ROWS = 6;  // 6 × 16: 12 of 16 registers
#else
constexpr int VECTORS = 4, ROWS = 4;
#endif
constexpr int PANEL = VECTORS * LANES;

enum Kind : int32_t { FLOAT32, BFLOAT16, INT8 };

struct Matrix {
  int outputs = 0, inputs = 0, panels = 0;
  Kind kind = FLOAT32;
  Buffer<float> floats;
  Buffer<uint16_t> halves;
  Buffer<int8_t> bytes;
  Buffer<float> scale;   // (padded outputs) int8
  Buffer<int32_t> sums;  // (padded outputs) int8
  Buffer<float> bias;    // (padded outputs)

  int quads() const { return (inputs + 3) / 4; }

  // Bytes that one round of the loop over inputs reads: an input's weights for a panel, or four inputs' (int8).
  size_t row_bytes() const { return PANEL * (kind == BFLOAT16 ? 2 : 4); }
  size_t panel_bytes() const { return row_bytes() * (kind == INT8 ? quads() : inputs); }
  size_t size() const { return panels * panel_bytes(); }

  const char* panel(int number) const {
    const void* begin = kind == FLOAT32 ? static_cast<const void*>(floats.get())
                        : kind == BFLOAT16 ? static_cast<const void*>(halves.get()) : bytes.get();
    return static_cast<const char*>(begin) + number * panel_bytes();
  }
};

inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return uint16_t(bits >> 16) | 0x40;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to the nearest, ties to even
}

// Where a column of a panel lies among its bfloat16 weights.
inline int place_of_half(int column) {
  const int pair = column / (2 * LANES), inside = column % (2 * LANES);
  return (pair * LANES + inside % LANES) * 2 + inside / LANES;
}

// One panel of float32 or bfloat16 weights. w (outputs, inputs) lies row by row.
template <class W, class Convert, class Place>
void pack_floats(const Matrix& m, int panel, const float* w, W* to, Convert convert, Place place) {
  W* out = to + size_t(panel) * PANEL * m.inputs;
  const int columns = std::min(PANEL, m.outputs - panel * PANEL);
  if (columns < PANEL) std::memset(out, 0, sizeof(W) * PANEL * m.inputs);
  for (int first = 0; first < m.inputs; first += 16) {  // a few inputs at a time: both sides stay in the cache
    const int last = std::min(m.inputs, first + 16);
    for (int c = 0; c < columns; ++c) {
      const float* from = w + size_t(panel * PANEL + c) * m.inputs;
      const int at = place(c);
      for (int i = first; i < last; ++i) out[size_t(i) * PANEL + at] = convert(from[i]);
    }
  }
}

inline void pack_bytes(const Matrix& m, int panel, const float* w) {
  int8_t* out = m.bytes.get() + size_t(panel) * PANEL * m.quads() * 4;
  std::memset(out, 0, size_t(PANEL) * m.quads() * 4);
  std::vector<int8_t> row(m.quads() * 4, 0);
  for (int c = 0; c < PANEL; ++c) {
    const int column = panel * PANEL + c;
    m.scale[column] = 0;
    m.sums[column] = 0;
    if (column >= m.outputs) continue;
    const float* from = w + size_t(column) * m.inputs;
    Floats high{}, strange{};
    int i = 0;
    for (; i + LANES <= m.inputs; i += LANES) {
      const Floats v = load(from + i);
      high = larger(high, larger(v, -v));
      strange += v * 0.0f;  // not a number if any weight is not
    }
    float peak = largest(high), odd = sum(strange);
    for (; i < m.inputs; ++i) {
      peak = std::max(peak, std::fabs(from[i]));
      odd += from[i] * 0.0f;
    }
    m.scale[column] = peak / 127.0f + odd;
    if (!(peak > 0) || odd != 0) continue;
    const float inverse = 127.0f / peak;
    Ints totals{};
    for (i = 0; i + LANES <= m.inputs; i += LANES) {
      const Floats turned = load(from + i) * inverse;
      const Ints q = __builtin_convertvector(turned + (turned < 0.0f ? all(-0.5f) : all(0.5f)), Ints);
      const SmallInts small = __builtin_convertvector(q, SmallInts);
      std::memcpy(row.data() + i, &small, sizeof(small));
      totals += q;
    }
    int32_t total = 0;
    for (int lane = 0; lane < LANES; ++lane) total += totals[lane];
    for (; i < m.inputs; ++i) {
      const float turned = from[i] * inverse;
      const int32_t q = int32_t(turned + (turned < 0 ? -0.5f : 0.5f));
      row[i] = int8_t(q);
      total += q;
    }
    for (i = 0; i < m.quads(); ++i) std::memcpy(out + (size_t(i) * PANEL + c) * 4, row.data() + i * 4, 4);
    m.sums[column] = total;
  }
}

// Room for a matrix; its panels are filled by `pack_panel`, in any order and by any thread.
// `beyond` is the bias of columns that do not exist: −∞ keeps them out of a softmax.
inline void lay_out(Matrix& m, int outputs, int inputs, Kind kind, const float* bias, float beyond) {
  m.outputs = outputs;
  m.inputs = inputs;
  m.kind = kind;
  m.panels = (outputs + PANEL - 1) / PANEL;
  const size_t padded = size_t(m.panels) * PANEL;
  m.bias.reserve(padded);
  for (size_t c = 0; c < padded; ++c) m.bias[c] = int(c) >= outputs ? beyond : bias ? bias[c] : 0.0f;
  if (kind == FLOAT32) m.floats.reserve(padded * inputs);
  if (kind == BFLOAT16) m.halves.reserve(padded * inputs);
  if (kind == INT8) {
    m.bytes.reserve(padded * m.quads() * 4);
    m.scale.reserve(padded);
    m.sums.reserve(padded);
  }
}

inline void pack_panel(const Matrix& m, int panel, const float* w) {
  if (m.kind == FLOAT32)
    pack_floats(m, panel, w, m.floats.get(), [](float v) { return v; }, [](int c) { return c; });
  if (m.kind == BFLOAT16) pack_floats(m, panel, w, m.halves.get(), to_bfloat16, place_of_half);
  if (m.kind == INT8) pack_bytes(m, panel, w);
}

}  // namespace clearhead
