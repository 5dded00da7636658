// ARM's whole-number products: activations are kept as byte − 128, so that both sides are signed.
//
//   I8MM      eight inputs of two columns times the same of two rows, one instruction for 32 products
//   DotProd   four inputs of four columns times the same of one row, 16 products
//   neither   sixteen inputs of one column, 8 products in 16 bits each; two of them add up to at most
//             2 · 128 · 127 = 32512, which 16 bits still hold, before pairs are added to sums of 32 bits
#pragma once

#include "tile.h"

namespace clearhead {
namespace {

constexpr int QUANTISED_BYTES = 1;

inline int32_t put_quantised(uint8_t* to, int at, Ints bytes, int32_t zero) {
  const int16x4_t half = vmovn_s32((int32x4_t)(bytes - 128));
  const int8x8_t narrow = vmovn_s16(vcombine_s16(half, half));
  std::memcpy(to + at, &narrow, LANES);
  return zero - 128;
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define CLEARHEAD_OWN_BYTE_TILE

constexpr int TOGETHER = 8;

// R rows times N vectors of columns, from `first` on. Rows go in pairs; the last of an odd number is its own partner.
template <int R, int N>
__attribute__((always_inline)) inline void byte_part(const int8_t* w, int rounds, const Input& x, int row, int first,
                                                     Ahead ahead, Ints (&sums)[R][VECTORS]) {
  constexpr int PAIRS = (R + 1) / 2;
  const int8_t* from[2 * PAIRS];
  int32x4_t c[PAIRS][2 * N];
  CLEARHEAD_UNROLL for (int r = 0; r < 2 * PAIRS; ++r)
    from[r] = reinterpret_cast<const int8_t*>(x.bytes) + size_t(row + (r < R ? r : R - 1)) * x.byte_stride;
  CLEARHEAD_UNROLL for (int p = 0; p < PAIRS; ++p)
      CLEARHEAD_UNROLL_ALL for (int n = 0; n < 2 * N; ++n) c[p][n] = vdupq_n_s32(0);
  w += first * LANES * TOGETHER;
  for (int i = 0; i < rounds; ++i, w += PANEL * TOGETHER) {
    int8x16_t a[PAIRS];
    CLEARHEAD_UNROLL for (int p = 0; p < PAIRS; ++p)
      a[p] = vcombine_s8(vld1_s8(from[2 * p] + i * 8), vld1_s8(from[2 * p + 1] + i * 8));
    ahead.fetch();
    CLEARHEAD_UNROLL_ALL for (int n = 0; n < 2 * N; ++n) {
      const int8x16_t b = vld1q_s8(w + n * 16);
      CLEARHEAD_UNROLL for (int p = 0; p < PAIRS; ++p)
        asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(c[p][n]) : "w"(a[p]), "w"(b));
    }
  }
  CLEARHEAD_UNROLL for (int r = 0; r < R; ++r)
    CLEARHEAD_UNROLL for (int v = 0; v < N; ++v) {
      const int64x2_t low = vreinterpretq_s64_s32(c[r / 2][2 * v]), high = vreinterpretq_s64_s32(c[r / 2][2 * v + 1]);
      sums[r][first + v] = (Ints)(r % 2 ? vzip2q_s64(low, high) : vzip1q_s64(low, high));
    }
}

template <int R>
__attribute__((always_inline)) inline void byte_tile(const int8_t* w, int rounds, const Input& x, int row, Ahead ahead,
                                                     Ints (&sums)[R][VECTORS]) {
  constexpr int N = span((R + 1) / 2 * 2);
  for (int first = 0; first < VECTORS; first += N) {
    byte_part<R, N>(w, rounds, x, row, first, ahead, sums);
    ahead.lines = 0;
  }
}

#elif defined(__ARM_FEATURE_DOTPROD)

constexpr int TOGETHER = 4;

// The instruction takes four inputs from the first lane of a register: they need not be copied to the others.
typedef float Quad;  // their bits
__attribute__((always_inline)) inline Quad load_activations(const uint8_t* from) { return load<Quad>(from); }
__attribute__((always_inline)) inline Ints load_weights(const int8_t* from) { return load<Ints>(from); }
__attribute__((always_inline)) inline void multiply_add(Ints& c, Quad a, Ints b) {
  asm("sdot %0.4s, %1.16b, %2.4b[0]" : "+w"(c) : "w"(b), "w"(a));
}

#else
#define CLEARHEAD_OWN_BYTE_TILE

constexpr int TOGETHER = 16;

// Sixteen inputs of one row times those of two columns. In one piece, since compilers would otherwise begin all
// products of a round at once, and run out of registers.
__attribute__((always_inline)) inline void multiply_add(int32x4_t& c, int32x4_t& e, int8x16_t a, int8x16_t b,
                                                        int8x16_t d) {
  int16x8_t first, second;
  asm("smull %2.8h, %4.8b, %5.8b\n\t"
      "smull %3.8h, %4.8b, %6.8b\n\t"
      "smlal2 %2.8h, %4.16b, %5.16b\n\t"
      "smlal2 %3.8h, %4.16b, %6.16b\n\t"
      "sadalp %0.4s, %2.8h\n\t"
      "sadalp %1.4s, %3.8h"
      : "+w"(c), "+w"(e), "=&w"(first), "=&w"(second)
      : "w"(a), "w"(b), "w"(d));
}

// Sums of R rows and N columns from `first` on. Each takes a register; with more than 16 compilers begin to spill.
template <int R, int N>
__attribute__((always_inline)) inline void byte_part(const int8_t* w, int rounds, const Input& x, int row, int first,
                                                     Ahead ahead, Ints (*sums)[VECTORS]) {
  const int8_t* from[R];
  int32x4_t c[R][N];
  CLEARHEAD_UNROLL for (int r = 0; r < R; ++r) {
    from[r] = reinterpret_cast<const int8_t*>(x.bytes) + size_t(row + r) * x.byte_stride;
    CLEARHEAD_UNROLL_ALL for (int n = 0; n < N; ++n) c[r][n] = vdupq_n_s32(0);
  }
  w += first * TOGETHER;
  for (int i = 0; i < rounds; ++i, w += PANEL * TOGETHER) {
    int8x16_t a[R];
    CLEARHEAD_UNROLL for (int r = 0; r < R; ++r) a[r] = vld1q_s8(from[r] + i * 16);
    ahead.fetch();
    CLEARHEAD_UNROLL for (int n = 0; n < N; n += 2) {
      const int8x16_t b = vld1q_s8(w + n * 16), d = vld1q_s8(w + n * 16 + 16);
      CLEARHEAD_UNROLL for (int r = 0; r < R; ++r) multiply_add(c[r][n], c[r][n + 1], a[r], b, d);
    }
  }
  CLEARHEAD_UNROLL for (int r = 0; r < R; ++r)
    CLEARHEAD_UNROLL for (int n = 0; n < N; n += 4)
      sums[r][(first + n) / 4] =
          (Ints)vpaddq_s32(vpaddq_s32(c[r][n], c[r][n + 1]), vpaddq_s32(c[r][n + 2], c[r][n + 3]));
}

// Two rows at a time through 8 columns after 8 columns; the last of an odd number takes 16 of them at once.
template <int R>
__attribute__((always_inline)) inline void byte_tile(const int8_t* w, int rounds, const Input& x, int row, Ahead ahead,
                                                     Ints (&sums)[R][VECTORS]) {
  for (int r = 0; r + 2 <= R; r += 2)
    for (int first = 0; first < PANEL; first += 8) {
      byte_part<2, 8>(w, rounds, x, row + r, first, ahead, sums + r);
      ahead.lines = 0;
    }
  for (int first = 0; R % 2 && first < PANEL; first += 16) {
    byte_part<1, 16>(w, rounds, x, row + R - 1, first, ahead, sums + R - 1);
    ahead.lines = 0;
  }
}
#endif

}  // namespace
}  // namespace clearhead
