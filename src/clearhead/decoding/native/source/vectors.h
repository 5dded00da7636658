// Short vectors of floats on any processor, and the functions that softmax and activations need.
//
// Written with the compilers' vector extensions, so one text serves AVX-512, AVX2 and everything else: only the
// number of lanes changes. What a lane computes never depends on its neighbours.
//
// Everything that only kernels.cpp includes lies in a namespace without a name, and uses nothing of the standard
// library that would leave code behind: see kernels.h.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels.h"

namespace clearhead {
namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

template <class T>
inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

inline Floats load(const float* from) { return load<Floats>(static_cast<const void*>(from)); }

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof(Floats)); }

// For what is written once and mostly never read: it need not push weights out of the cache. `to` is aligned.
inline void store_past_cache(float* to, Floats value) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)value);
#else
  store(to, value);
#endif
}

inline Floats all(float value) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(value);
#else
  return value - Floats{};
#endif
}
inline Ints all(int32_t value) {
#if defined(__AVX512F__)
  return (Ints)_mm512_set1_epi32(value);
#else
  return value - Ints{};
#endif
}

// The number itself, rounded: what is added to a product of this is not fused with it, so that the result is the
// same on processors with and without that instruction.
template <class T>
__attribute__((always_inline)) inline T rounded(T value) {
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#elif defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
  return value;
}

// Where one of them is not a number, the second.
inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}
inline Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}

constexpr float INFINITE = __builtin_inff();
constexpr float SMALLEST = 1e-35f;  // range that is worth a scale: 255 divided by it is still a number

inline int least(int a, int b) { return a < b ? a : b; }
inline int up_to_whole(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

inline float sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__aarch64__)
  return vaddvq_f32((float32x4_t)v);
#else
  float lanes[LANES], total = 0;
  store(lanes, v);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  total = lanes[0];
  return total;
#endif
}

inline float largest(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(__aarch64__)
  return vmaxvq_f32((float32x4_t)v);
#else
  float lanes[LANES];
  store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < LANES; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
#endif
}

// One bit for each lane that is at least `bar`.
inline uint32_t not_below(Floats v, float bar) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(bar), _CMP_GE_OQ);
#elif defined(__aarch64__)
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgeq_f32((float32x4_t)v, vdupq_n_f32(bar)), bits));
#else
  uint32_t bits = 0;
  for (int i = 0; i < LANES; ++i) bits |= uint32_t(v[i] >= bar) << i;
  return bits;
#endif
}

// e^x to about one unit in the last place, between the smallest and the largest normal number.
// x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by a polynomial, 2^n by writing the exponent bits.
inline Floats exponential(Floats x) {
  x = larger(all(-87.33f), x);  // in this order what is not a number stays so, and is noticed
  x = smaller(all(88.37f), x);
  const float magic = 12582912.0f;  // 1.5·2²³: adding it rounds to a whole number
  const Floats moved = x * 1.44269504f + magic, n = moved - magic;
  Floats r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
#if defined(__AVX512F__)
  return (Floats)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  const Words power = ((Words)moved << 23) + (127u << 23);  // the lowest bits of `moved` are those of n
  return p * (Floats)power;
#endif
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }
inline Floats hyperbolic(Floats x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

// The error function by Abramowitz and Stegun's formula 7.1.26, right to 1.5e-7.
inline Floats error_function(Floats x) {
  Floats a = larger(x, -x);
  Floats t = 1.0f / (1.0f + 0.3275911f * a);
  Floats p = all(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  Floats y = 1.0f - p * t * exponential(-a * a);
  return x < 0.0f ? -y : y;
}

// What is not a number passes, so that it is noticed.
inline Floats relu(Floats x) { return larger(Floats{}, x); }

inline Floats activate(Floats x, int32_t kind) {
  switch (kind) {
    case RELU:
      return relu(x);
    case GELU:
      return 0.5f * x * (1.0f + error_function(x * 0.70710678f));
    case GELU_TANH:
      return 0.5f * x * (1.0f + hyperbolic(0.79788456f * (x + 0.044715f * x * x * x)));
    case QUICK_GELU:
      return x * sigmoid(1.702f * x);
    case SILU:
      return x * sigmoid(x);
    case TANH:
      return hyperbolic(x);
    default:
      return x;
  }
}

}  // namespace
}  // namespace clearhead
