// Two inputs at a time, as 16-bit numbers: every x86 processor multiplies those in pairs and adds the two.
//
// Weights lie in memory as bytes and are widened once for all rows of a tile. Activations are kept as byte − zero,
// −255..255 in 16 bits. The instruction that multiplies bytes (vpmaddubsw) would need half the room, but it
// clips a pair's sum to 16 bits, and 2 · 255 · 127 is beyond them.
#pragma once

#include "tile.h"

namespace clearhead {
namespace {

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

}  // namespace
}  // namespace clearhead
