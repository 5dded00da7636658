// Short vectors of floats on any processor, the functions that softmax and activations need, and how many of them
// products take at a time.
//
// Written with the compilers' vector extensions, so one text serves AVX-512, AVX2, SSE and ARM: only the number of
// lanes changes. What a lane computes never depends on its neighbours.
//
// Everything that only kernels.cpp includes lies in a namespace without a name, and uses nothing of the standard
// library that would leave code behind: see kernels.h.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include "kernels.h"

namespace clearhead {
namespace {

// How wide a vector is; the processor's own functions on one, CLEARHEAD_NATIVE(max) for _mm256_max_ps, say; and the
// shape of a tile: ROWS rows times one panel of columns, or as much of it as registers hold while the inputs run by.
// A sum waits for the one before, so one or two rows take a panel so wide that the units are busy meanwhile; more
// rows than WHOLE take half of it at a time.
constexpr int ROWS = 6;
#if defined(__AVX512F__)
typedef __m512 Native;
#define CLEARHEAD_NATIVE(name) _mm512_##name##_ps
constexpr int LANES = 16, VECTORS = 4, WHOLE = 6;  // 6 × 64: 24 of the 32 registers hold sums
#elif defined(__AVX__)
typedef __m256 Native;
#define CLEARHEAD_NATIVE(name) _mm256_##name##_ps
constexpr int LANES = 8, VECTORS = 4, WHOLE = 2;  // 6 × 16 or 2 × 32: 12 or 8 of 16 registers
#elif defined(__x86_64__)
typedef __m128 Native;
#define CLEARHEAD_NATIVE(name) _mm_##name##_ps
constexpr int LANES = 4, VECTORS = 4, WHOLE = 2;  // 6 × 8 or 2 × 16: 12 or 8 of 16 registers
#else
constexpr int LANES = 4, VECTORS = 8, WHOLE = 2;  // 6 × 16 or 2 × 32: 24 or 16 of 32 registers
#endif
constexpr int PANEL = VECTORS * LANES;

// Vectors of columns that a tile of so many rows sums up at once.
constexpr int span(int rows) { return rows <= WHOLE ? VECTORS : VECTORS / 2; }

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

// f(vector, where it begins) for a row of n numbers; those beyond its end are 0.
template <class F>
__attribute__((always_inline)) inline void each_vector(const float* x, int n, F f) {
  int i = 0;
  for (; i + LANES <= n; i += LANES) f(load(x + i), i);
  if (i == n) return;
  float rest[LANES] = {};
  for (int j = i; j < n; ++j) rest[j - i] = x[j];
  f(load(rest), i);
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof(Floats)); }

// For what is written once and mostly never read: it need not push weights out of the cache. `to` is aligned.
inline void store_past_cache(float* to, Floats value) {
#if defined(CLEARHEAD_NATIVE)
  CLEARHEAD_NATIVE(stream)(to, (Native)value);
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
#else
  asm("" : "+w"(value));
#endif
  return value;
}

// Where one of them is not a number, the second.
inline Floats larger(Floats a, Floats b) {
#if defined(CLEARHEAD_NATIVE)
  return (Floats)CLEARHEAD_NATIVE(max)((Native)a, (Native)b);
#else
  return a > b ? a : b;
#endif
}
inline Floats smaller(Floats a, Floats b) {
#if defined(CLEARHEAD_NATIVE)
  return (Floats)CLEARHEAD_NATIVE(min)((Native)a, (Native)b);
#else
  return a < b ? a : b;
#endif
}

constexpr float INFINITE = __builtin_inff();
constexpr float SMALLEST = 1e-35f;  // range that is worth a scale: 255 divided by it is still a number

inline int least(int a, int b) { return a < b ? a : b; }
inline int up_to_whole(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

#if defined(__x86_64__) && !defined(__AVX512F__)
// The lower and the upper half of a vector, joined by `join`, down to one number.
template <class Join>
__attribute__((always_inline)) inline float fold(Floats v, Join join) {
#if defined(__AVX__)
  __m128 half = join(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
#else
  __m128 half = (__m128)v;
#endif
  half = join(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(join(half, _mm_shuffle_ps(half, half, 1)));
}
#endif

inline float sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__x86_64__)
  return fold(v, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
#else
  float lanes[LANES];
  store(lanes, v);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

inline float largest(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(__x86_64__)
  return fold(v, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
#else
  float lanes[LANES];
  store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < LANES; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
#endif
}

// The sums of four vectors.
inline void four_sums(Floats a, Floats b, Floats c, Floats d, float* to) {
#if defined(__AVX512F__)
  const __m512 x = (__m512)a, y = (__m512)b, z = (__m512)c, w = (__m512)d;
  const __m512 first = _mm512_unpacklo_ps(x, y) + _mm512_unpackhi_ps(x, y);   // x y x y in each quarter
  const __m512 second = _mm512_unpacklo_ps(z, w) + _mm512_unpackhi_ps(z, w);
  const __m512 both = _mm512_shuffle_ps(first, second, 0x44) + _mm512_shuffle_ps(first, second, 0xEE);
  const __m256 half = _mm512_castps512_ps256(both) + _mm512_castps512_ps256(_mm512_shuffle_f32x4(both, both, 0x4E));
  _mm_storeu_ps(to, _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
#elif defined(__AVX__)
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
  _mm_storeu_ps(to, _mm256_castps256_ps128(both) + _mm256_extractf128_ps(both, 1));
#elif defined(__x86_64__)
  __m128 x = (__m128)a, y = (__m128)b, z = (__m128)c, w = (__m128)d;
  _MM_TRANSPOSE4_PS(x, y, z, w);
  _mm_storeu_ps(to, (x + z) + (y + w));
#else
  const float32x4_t first = vpaddq_f32((float32x4_t)a, (float32x4_t)b);
  vst1q_f32(to, vpaddq_f32(first, vpaddq_f32((float32x4_t)c, (float32x4_t)d)));
#endif
}

// The largest lane of each of four vectors.
inline void four_largest(Floats a, Floats b, Floats c, Floats d, float* to) {
#if defined(__AVX512F__)
  const __m512 x = (__m512)a, y = (__m512)b, z = (__m512)c, w = (__m512)d;
  const __m512 first = _mm512_max_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
  const __m512 second = _mm512_max_ps(_mm512_unpacklo_ps(z, w), _mm512_unpackhi_ps(z, w));
  const __m512 both = _mm512_max_ps(_mm512_shuffle_ps(first, second, 0x44), _mm512_shuffle_ps(first, second, 0xEE));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(both),
                                    _mm512_castps512_ps256(_mm512_shuffle_f32x4(both, both, 0x4E)));
  _mm_storeu_ps(to, _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(__x86_64__)
#if defined(__AVX__)  // the two halves first
  auto half = [](Floats v) {
    return _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  };
#else
  auto half = [](Floats v) { return (__m128)v; };
#endif
  __m128 x = half(a), y = half(b), z = half(c), w = half(d);
  _MM_TRANSPOSE4_PS(x, y, z, w);
  _mm_storeu_ps(to, _mm_max_ps(_mm_max_ps(x, z), _mm_max_ps(y, w)));
#else
  to[0] = largest(a);
  to[1] = largest(b);
  to[2] = largest(c);
  to[3] = largest(d);
#endif
}

// One bit for each lane that is at least `bar`.
inline uint32_t not_below(Floats v, float bar) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(bar), _CMP_GE_OQ);
#elif defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(bar), _CMP_GE_OQ));
#elif defined(__x86_64__)
  return _mm_movemask_ps(_mm_cmpge_ps((__m128)v, _mm_set1_ps(bar)));
#else
  uint32_t bits = 0;
  for (int i = 0; i < LANES; ++i) bits |= uint32_t(v[i] >= bar) << i;
  return bits;
#endif
}

// e^x = 2^n · (1 + rest), with n = x / ln 2 rounded and e^r − 1 for what remains, |r| ≤ ln 2 / 2, by a polynomial.
struct Power {
  Floats n, rest;
  Words bits;  // n in the lowest bits

  explicit Power(Floats x) {
    const float magic = 12582912.0f;  // 1.5·2²³: adding it rounds to a whole number
    const Floats sum = x * 1.44269504f + magic;
    bits = (Words)sum;
    n = sum - magic;
    Floats r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Floats p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    rest = p * (r * r) + r;
  }

  // value · 2^n, by writing the exponent.
  Floats times(Floats value) const {
#if defined(__AVX512F__)
    return (Floats)_mm512_scalef_ps((__m512)value, (__m512)n);
#else
    return value * (Floats)((bits << 23) + (127u << 23));
#endif
  }
};

// Between the smallest and the largest exponent; what is not a number stays so, and is noticed.
inline Floats bounded(Floats x) { return smaller(all(88.37f), larger(all(-87.33f), x)); }

// e^x to about one unit in the last place, between the smallest and the largest normal number.
inline Floats exponential(Floats x) {
  const Power power(bounded(x));
  return power.times(power.rest + 1.0f);
}

// The same with another sign: a number's own is its highest bit.
inline Floats magnitude(Floats x) { return (Floats)((Words)x & 0x7fffffffu); }
inline Floats with_sign_of(Floats x, Floats sign) {
  return (Floats)((Words)magnitude(x) | ((Words)sign & 0x80000000u));
}

// e^x for x ≤ 0, right to about two units in the last place of the largest of many such numbers: enough for their
// sum, in fewer steps. x·log2 e = n + f with |f| ≤ 1/2; 2^f by a polynomial that is exactly 1 at 0, so that a sum with
// the largest in it is never below 1.
inline Floats exponential_of_share(Floats x) {
  const Floats t = larger(all(-126.0f), x * 1.44269504f);  // in this order what is not a number stays so
#if defined(__AVX512F__)
  const Floats n = (Floats)_mm512_roundscale_ps((__m512)t, 0x08);  // to the nearest whole number
#else
  const Floats moved = t + 12582912.0f, n = moved - 12582912.0f;
#endif
  const Floats f = t - n;
  Floats p = all(1.3264726899e-3f);
  p = p * f + 9.6715126606e-3f;
  p = p * f + 5.5507337442e-2f;
  p = p * f + 2.4022242085e-1f;
  p = p * f + 6.9314697760e-1f;
  p = p * f + 1.0f;
#if defined(__AVX512F__)
  return (Floats)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  const Words power = ((Words)moved << 23) + (127u << 23);
  return p * (Floats)power;
#endif
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

// From e^−2|x| − 1, which loses nothing where x is small.
inline Floats hyperbolic(Floats x) {
  const Power power(bounded(-2.0f * magnitude(x)));
  const Floats two_to_n = power.times(all(1.0f));
  const Floats less_one = power.rest * two_to_n + (two_to_n - 1.0f);
  return with_sign_of(less_one / (less_one + 2.0f), x);
}

// 1 − erf(a) of a ≥ 0 to a few units in the last place: e^−a² · t · P(t) with t = 1 / (1 + 0.3 a) and a polynomial
// fitted between 0 and 10, where its relative error is 2e-8.
inline Floats error_complement(Floats a) {
  const Floats t = 1.0f / (1.0f + 0.3f * a);
  Floats p = all(-0.129522786f);
  p = p * t + 0.485562682f;
  p = p * t - 0.512277007f;
  p = p * t + 0.547718823f;
  p = p * t - 0.0946499184f;
  p = p * t + 0.214925736f;
  p = p * t + 0.148339257f;
  p = p * t + 0.170715213f;
  p = p * t + 0.169188008f;
  return p * t * exponential(-a * a);
}

// x · Φ(x). Far below 0 no difference of nearly equal numbers is taken, and the result keeps its digits.
inline Floats gaussian_unit(Floats x) {
  const Floats part = smaller(all(20.0f), x);  // beyond, nothing is left to take off, not even of infinity
  const Floats tail = 0.5f * part * error_complement(magnitude(x) * 0.70710678f);
  return x > 0.0f ? x - tail : tail;
}

// What is not a number passes, so that it is noticed.
inline Floats relu(Floats x) { return larger(Floats{}, x); }

inline Floats activate(Floats x, int32_t kind) {
  switch (kind) {
    case RELU:
      return relu(x);
    case GELU:
      return gaussian_unit(x);
    case GELU_TANH:  // (1 + tanh u) / 2 is the sigmoid of 2u
      return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
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

#define CLEARHEAD_UNROLL _Pragma("GCC unroll 8")
#define CLEARHEAD_UNROLL_ALL _Pragma("GCC unroll 16")

// Memory that will be wanted soon: at each round of the loop over inputs, so many cache lines are asked for, and the
// next round begins `step` bytes further on. An address beyond the weights is asked for in vain, and does no harm.
struct Ahead {
  const char* from;
  int lines, step;

  __attribute__((always_inline)) void fetch() {
    for (int i = 0; i < lines; ++i) __builtin_prefetch(from + i * 64);
    from += step;
  }
};

}  // namespace
}  // namespace clearhead
