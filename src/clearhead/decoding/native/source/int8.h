// Whole-number products: which instructions a set uses, and with them the layout of weights and activations.
//
// Every set gives the same sums, Σ (byte − zero) · q, bit for bit. Each of the headers below defines
//
//   TOGETHER          inputs that lie side by side in the weights, [panel][input / TOGETHER][column][TOGETHER]
//   QUANTISED_BYTES   of one activation
//   put_quantised     writes LANES activations, given as bytes 0..255 and the byte that stands for 0, and returns
//                     the zero point of what it wrote: x ≈ scale · (written − zero point)
//   load_weights      TOGETHER weights of each of LANES columns, ready to be multiplied
//   load_activations  the same inputs of one row, 32 bits, as the next one wants them
//   multiply_add      of the two
//
// or, with CLEARHEAD_OWN_BYTE_TILE, instead of the last three a `byte_tile` of its own.
#pragma once

#if defined(__aarch64__)
#include "int8_neon.h"
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(CLEARHEAD_EMULATE)
#include "int8_quads.h"
#else
#include "int8_pairs.h"
#endif

namespace clearhead {
namespace {

// Rounds of the loop over inputs.
inline int byte_rounds(int inputs) { return (inputs + TOGETHER - 1) / TOGETHER; }

// Of a row of activations, with room for whole vectors.
inline int quantised_bytes(int columns) {
  return up_to_whole(columns, TOGETHER > LANES ? TOGETHER : LANES) * QUANTISED_BYTES;
}

#if !defined(CLEARHEAD_OWN_BYTE_TILE)
// Whole-number sums of R rows and N vectors of columns, from `first` on.
template <int R, int N>
__attribute__((always_inline)) inline void byte_part(const int8_t* w, int rounds, const Input& x, int row, int first,
                                                     Ahead ahead, Ints (&sums)[R][VECTORS]) {
  static_assert(TOGETHER * QUANTISED_BYTES == 4, "a round reads 32 bits of each row");
  const uint8_t* from[R];
  Ints c[R][N];
  CLEARHEAD_UNROLL for (int r = 0; r < R; ++r) {
    from[r] = x.bytes + size_t(row + r) * x.byte_stride;
    CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) c[r][v] = Ints{};
  }
  w += first * LANES * TOGETHER;
  for (int i = 0; i < rounds; ++i, w += PANEL * TOGETHER) {
    Ints b[N];
    CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) b[v] = load_weights(w + v * LANES * TOGETHER);
    ahead.fetch();
    CLEARHEAD_UNROLL for (int r = 0; r < R; ++r) {
      const auto a = load_activations(from[r] + i * 4);
      CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) multiply_add(c[r][v], a, b[v]);
    }
  }
  CLEARHEAD_UNROLL for (int r = 0; r < R; ++r)
      CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) sums[r][first + v] = c[r][v];
}

template <int R>
__attribute__((always_inline)) inline void byte_tile(const int8_t* w, int rounds, const Input& x, int row, Ahead ahead,
                                                     Ints (&sums)[R][VECTORS]) {
  for (int first = 0; first < VECTORS; first += span(R)) {
    byte_part<R, span(R)>(w, rounds, x, row, first, ahead, sums);
    ahead.lines = 0;
  }
}
#endif

}  // namespace
}  // namespace clearhead
