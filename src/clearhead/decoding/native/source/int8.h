// Whole-number products: which instructions a set uses, and with them the layout of weights and activations.
//
// Every set gives the same sums, Σ (byte − zero) · q, bit for bit. Each of the three parts below defines
//
//   TOGETHER          inputs that lie side by side in the weights, [panel][input / TOGETHER][column][TOGETHER]
//   QUANTISED_BYTES   of one activation
//   put_quantised     writes LANES activations, given as bytes 0..255 and the byte that stands for 0, and returns
//                     the zero point of what it wrote: x ≈ scale · (written − zero point)
//   load_weights      TOGETHER weights of each of LANES columns, ready to be multiplied
//   load_activations  the same inputs of one row, 32 bits, as the next one wants them
//   multiply_add      of the two
//
// or, instead of the last three, a `byte_part` (CLEARHEAD_OWN_BYTE_PART) or a `byte_tile` (CLEARHEAD_OWN_BYTE_TILE) of
// its own.
#pragma once

#include "vectors.h"

namespace clearhead {
namespace {

#if defined(__aarch64__)
// ARM's whole-number products: activations are kept as byte − 128, so that both sides are signed.
//
//   I8MM      eight inputs of two columns times the same of two rows, one instruction for 32 products
//   DotProd   four inputs of four columns times the same of one row, 16 products
//   neither   sixteen inputs of one column, 8 products in 16 bits each; two of them add up to at most
//             2 · 128 · 127 = 32512, which 16 bits still hold, before pairs are added to sums of 32 bits
constexpr int QUANTISED_BYTES = 1;

inline int32_t put_quantised(uint8_t* to, int at, Ints bytes, int32_t zero) {
  const int16x4_t half = vmovn_s32((int32x4_t)(bytes - 128));
  const int8x8_t narrow = vmovn_s16(vcombine_s16(half, half));
  std::memcpy(to + at, &narrow, LANES);
  return zero - 128;
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define CLEARHEAD_OWN_BYTE_PART

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

#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(CLEARHEAD_EMULATE)
// Four inputs at a time, unsigned bytes times signed ones: the dot-product instruction of VNNI.
//
// With CLEARHEAD_EMULATE the same is computed step by step, for tests on processors that lack the instruction.
constexpr int TOGETHER = 4, QUANTISED_BYTES = 1;

inline int32_t put_quantised(uint8_t* to, int at, Ints bytes, int32_t zero) {
  const Bytes narrow = __builtin_convertvector(bytes, Bytes);
  std::memcpy(to + at, &narrow, sizeof(narrow));
  return zero;
}

__attribute__((always_inline)) inline Ints load_weights(const int8_t* from) { return load<Ints>(from); }

__attribute__((always_inline)) inline Ints load_activations(const uint8_t* from) { return all(load<int32_t>(from)); }

// Each lane of c += four products of bytes: unsigned a, signed b.
__attribute__((always_inline)) inline void multiply_add(Ints& c, Ints a, Ints b) {
#if defined(__AVX512VNNI__) && !defined(CLEARHEAD_EMULATE)
  asm("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
#elif defined(__AVXVNNI__) && !defined(CLEARHEAD_EMULATE)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
#else
  for (int shift = 0; shift < 32; shift += 8) c += ((a >> shift) & 255) * ((b << (24 - shift)) >> 24);
#endif
}

#else
// Two inputs at a time, as 16-bit numbers: every x86 processor multiplies those in pairs and adds the two.
//
// Weights lie in memory as bytes and are widened once for all rows of a tile. Activations are kept as byte − zero,
// −255..255 in 16 bits. The instruction that multiplies bytes (vpmaddubsw) would need half the room, but it
// clips a pair's sum to 16 bits, and 2 · 255 · 127 is beyond them.
constexpr int TOGETHER = 2, QUANTISED_BYTES = 2;

typedef int16_t Shorts __attribute__((vector_size(LANES * 2)));

inline int32_t put_quantised(uint8_t* to, int at, Ints bytes, int32_t zero) {
  const Shorts narrow = __builtin_convertvector(bytes - zero, Shorts);
  std::memcpy(to + 2 * at, &narrow, sizeof(narrow));
  return 0;
}

// LANES pairs of bytes as pairs of 16-bit numbers.
__attribute__((always_inline)) inline Ints load_weights(const int8_t* from) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return (Ints)_mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
#endif
}

__attribute__((always_inline)) inline Ints load_activations(const uint8_t* from) { return all(load<int32_t>(from)); }

// Each lane of c += a pair of products.
__attribute__((always_inline)) inline void multiply_add(Ints& c, Ints a, Ints b) {
#if defined(__AVX512F__)
  c += (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  c += (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  c += (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}
#endif

// Rounds of the loop over inputs.
inline int byte_rounds(int inputs) { return (inputs + TOGETHER - 1) / TOGETHER; }

// Of a row of activations, with room for whole vectors.
inline int quantised_bytes(int columns) {
  return up_to_whole(columns, TOGETHER > LANES ? TOGETHER : LANES) * QUANTISED_BYTES;
}

#if !defined(CLEARHEAD_OWN_BYTE_PART) && !defined(CLEARHEAD_OWN_BYTE_TILE)
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
#endif

#if !defined(CLEARHEAD_OWN_BYTE_TILE)
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
