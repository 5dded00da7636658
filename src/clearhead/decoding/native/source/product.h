// Products of activations with packed weights: one row or thousands, the same numbers either way.
//
// A tile of up to ROWS rows and one panel of columns is held in registers while the inputs run by. Each sum is
// made by one register lane in the order of the inputs (float32, bfloat16) or of whole numbers (int8), so a row's
// result does not depend on the rows beside it. Bias, activation, residual sum and, for the scores over a
// vocabulary, each panel's share of the softmax are done while the tile is still in registers.
#pragma once

#include "pack.h"

namespace clearhead {
namespace {

template <int R>
using Tile = Floats[R][VECTORS];

#if defined(__aarch64__)
typedef float Factor;  // in the first lane of a register, from which the instruction takes it for all columns
inline Factor factor(float value) { return value; }
#else
typedef Floats Factor;
inline Factor factor(float value) { return all(value); }
#endif

// c += a · b. Spelt out where there is an instruction for it: left to themselves, compilers copy the sums of a
// large tile to and fro, which halves the speed.
__attribute__((always_inline)) inline void multiply_add(Floats& c, Factor a, Floats b) {
#if defined(__AVX512F__)
  asm("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
#elif defined(__aarch64__)
  asm("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c) : "w"(b), "w"(a));
#else
  c += a * b;
#endif
}

// One input's weights for a few vectors of columns.
template <int N>
__attribute__((always_inline)) inline void load_weights(const float* w, Floats (&b)[N]) {
  CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) b[v] = load(w + v * LANES);
}
template <int N>
__attribute__((always_inline)) inline void load_weights(const uint16_t* w, Floats (&b)[N]) {
  CLEARHEAD_UNROLL for (int v = 0; v < N; v += 2) {
    const Words both = load<Words>(w + v * LANES);
    b[v] = (Floats)(both << 16);  // a bfloat16 is the upper half of a float
    b[v + 1] = (Floats)(both & 0xffff0000u);
  }
}

// R rows times N vectors of columns, from `first` on.
template <int R, int N, class W>
__attribute__((always_inline)) inline void float_part(const W* w, int inputs, const Input& x, int row, int first,
                                                      Ahead ahead, Tile<R>& tile) {
  const float* from[R];
  Floats c[R][N];
  CLEARHEAD_UNROLL for (int r = 0; r < R; ++r) {
    from[r] = x.floats + size_t(row + r) * x.stride;
    CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) c[r][v] = Floats{};
  }
  w += first * LANES;
  for (int i = 0; i < inputs; ++i, w += PANEL) {
    Floats b[N];
    load_weights(w, b);
    ahead.fetch();
    CLEARHEAD_UNROLL for (int r = 0; r < R; ++r) {
      const Factor a = factor(from[r][i]);
      CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) multiply_add(c[r][v], a, b[v]);
    }
  }
  CLEARHEAD_UNROLL for (int r = 0; r < R; ++r)
      CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) tile[r][first + v] = c[r][v];
}

template <int R, class W>
__attribute__((always_inline)) inline void float_tile(const W* w, int inputs, const Input& x, int row, Ahead ahead,
                                                      Tile<R>& tile) {
  for (int first = 0; first < VECTORS; first += span(R)) {
    float_part<R, span(R)>(w, inputs, x, row, first, ahead, tile);
    ahead.lines = 0;
  }
}

// From whole numbers to the numbers they stand for.
template <int R>
__attribute__((always_inline)) inline void scale_sums(const Matrix& m, int panel, const Input& x, int row,
                                                      const Ints (&sums)[R][VECTORS], Tile<R>& tile) {
  for (int v = 0; v < VECTORS; ++v) {
    const int column = panel * PANEL + v * LANES;
    const Floats scale = load(m.scale + column);
    const Ints weights = load<Ints>(m.sums + column);
    for (int r = 0; r < R; ++r) {
      const Ints exact = sums[r][v] - weights * x.zero[row + r];
      tile[r][v] = __builtin_convertvector(exact, Floats) * (scale * x.scale[row + r]);
    }
  }
}

// Scores over a vocabulary, and the panel's share of each row's softmax: its largest number and the sum of the others
// against it. Four rows at a time, whose lanes are then added up together.
template <int R>
__attribute__((always_inline)) inline void finish_scores(const Matrix& m, int panel, int row, const Output& out,
                                                         Tile<R>& tile) {
  const int first = panel * PANEL;
  CLEARHEAD_UNROLL for (int begin = 0; begin < R; begin += 4) {
    const int count = least(R - begin, 4);
    Floats high[4], total[4];
    float tops[4], shares[4];
    for (int r = 0; r < count; ++r) {
      Floats* values = tile[begin + r];
      for (int v = 0; v < VECTORS; ++v) values[v] += load(m.bias + first + v * LANES);
      high[r] = values[0];
      for (int v = 1; v < VECTORS; ++v) high[r] = larger(high[r], values[v]);
    }
    for (int r = count; r < 4; ++r) high[r] = high[0];
    four_largest(high[0], high[1], high[2], high[3], tops);
    for (int r = 0; r < count; ++r) {
      const Floats* values = tile[begin + r];
      total[r] = exponential_of_share(values[0] - tops[r]);
      for (int v = 1; v < VECTORS; ++v) total[r] += exponential_of_share(values[v] - tops[r]);
      float* to = out.floats + int64_t(row + begin + r) * out.stride + first;  // there is room for the padding
      const bool aligned = reinterpret_cast<uintptr_t>(to) % 64 == 0;
      for (int v = 0; v < VECTORS; ++v)
        aligned ? store_past_cache(to + v * LANES, values[v]) : store(to + v * LANES, values[v]);
    }
    for (int r = count; r < 4; ++r) total[r] = total[0];
    four_sums(total[0], total[1], total[2], total[3], shares);
    for (int r = 0; r < count; ++r) {
      float* peak = out.peaks + (size_t(row + begin + r) * m.panels + panel) * 2;
      peak[0] = tops[r];
      peak[1] = shares[r];
    }
  }
}

template <int R>
__attribute__((always_inline)) inline void finish(const Matrix& m, int panel, int row, const Output& out,
                                                  Tile<R>& tile) {
  const int first = panel * PANEL;
  const bool whole = first + PANEL <= m.outputs;
  for (int r = 0; r < R; ++r) {
    float* to = out.floats + int64_t(row + r) * out.stride + first;
    Floats values[VECTORS];
    for (int v = 0; v < VECTORS; ++v) {
      values[v] = tile[r][v] + load(m.bias + first + v * LANES);
      if (out.activation == RELU)
        values[v] = relu(values[v]);
      else if (out.activation != NO_ACTIVATION)
        values[v] = activate(values[v], out.activation);
    }
    if (whole) {
      for (int v = 0; v < VECTORS; ++v)
        store(to + v * LANES, out.add ? load(to + v * LANES) + values[v] : values[v]);
    } else {
      float rest[PANEL];
      std::memcpy(rest, values, sizeof(rest));
      for (int c = 0; first + c < m.outputs; ++c) to[c] = out.add ? to[c] + rest[c] : rest[c];
    }
  }
}

template <int R>
void tile(const Matrix& m, int panel, const Input& x, int row, Ahead ahead, const Output& out) {
  Tile<R> tile;
  const char* w = panel_of(m, panel);
  if (m.kind == FLOAT32) {
    float_tile<R>(reinterpret_cast<const float*>(w), m.inputs, x, row, ahead, tile);
  } else if (m.kind == BFLOAT16) {
    float_tile<R>(reinterpret_cast<const uint16_t*>(w), m.inputs, x, row, ahead, tile);
  } else {
    Ints sums[R][VECTORS];
    byte_tile<R>(reinterpret_cast<const int8_t*>(w), byte_rounds(m.inputs), x, row, ahead, sums);
    scale_sums<R>(m, panel, x, row, sums, tile);
  }
  if (out.peaks)
    finish_scores<R>(m, panel, row, out, tile);
  else
    finish<R>(m, panel, row, out, tile);
}

using TileFunction = void (*)(const Matrix&, int, const Input&, int, Ahead, const Output&);
constexpr TileFunction TILES[] = {nullptr, tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
static_assert(sizeof(TILES) / sizeof(TILES[0]) == ROWS + 1, "one for each height");

// Rows begin..end−1 of one panel, in tiles of nearly equal height. One tile reads its weights as they come from
// memory, and asks for them a little ahead; several read them from the cache, and while they compute, the next
// panel is fetched, if this thread goes on with it (`more`).
inline void product(const Matrix& m, int panel, const Input& x, int begin, int end, bool more, const Output& out) {
  const int bytes = int(row_bytes(m.kind)), lines = (bytes + 63) / 64, blocks = (end - begin + ROWS - 1) / ROWS;
  const int share = blocks >= lines ? 1 : (lines + blocks - 1) / blocks;
  const size_t size = m.panel_bytes;
  int block = 0;
  for (int row = begin; row < end; ++block) {
    const int left = blocks - block, height = (end - row + left - 1) / left;
    Ahead ahead{panel_of(m, panel) + 2048, lines, bytes};
    if (blocks > 1) {  // each its share of the next panel's lines
      ahead.from = panel_of(m, panel) + size + size / lines * share * block;
      ahead.lines = more && block * share < lines ? share : 0;
      ahead.step = bytes / lines * share;
    }
    TILES[height](m, panel, x, row, ahead, out);
    row += height;
  }
}

}  // namespace
}  // namespace clearhead
