// Sixteen floats at a time, bf16 in memory and float32 in registers; random bits; work shared by threads.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>

using bf16 = uint16_t;
using Vector = __m512;
constexpr int64_t LANES = 16;

// How many of a vector's lanes are inside, where so many numbers are left.
inline __mmask16 inside(int64_t left) { return left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1); }

inline Vector widened(__m256i numbers) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
}
inline Vector load(const bf16* from) { return widened(_mm256_loadu_si256((const __m256i*)from)); }
inline Vector load(const bf16* from, __mmask16 in) { return widened(_mm256_maskz_loadu_epi16(in, from)); }
inline __m256i rounded(Vector x) { return (__m256i)_mm512_cvtneps_pbh(x); }
inline void store(bf16* to, Vector x) { _mm256_storeu_si256((__m256i*)to, rounded(x)); }
inline void store(bf16* to, Vector x, __mmask16 in) { _mm256_mask_storeu_epi16(to, in, rounded(x)); }
inline Vector all(float x) { return _mm512_set1_ps(x); }
inline float as_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float found;
    __builtin_memcpy(&found, &bits, 4);
    return found;
}

// e^x to about one unit in the last place; 0 where the result is too small for a float32, NaN for NaN.
inline Vector exponential(Vector x) {
    x = _mm512_max_ps(all(-104.0f), x);
    Vector n = _mm512_roundscale_ps(_mm512_mul_ps(x, all(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    Vector r = _mm512_fnmadd_ps(n, all(0.693359375f), x);  // ln 2 in two parts
    r = _mm512_fnmadd_ps(n, all(-2.12194440e-4f), r);
    Vector p = all(1.9875691500e-4f);
    for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f, 1.0f, 1.0f})
        p = _mm512_fmadd_ps(p, r, all(next));
    return _mm512_scalef_ps(p, n);
}

// -- random numbers by counter: Philox 4 × 32 with seven rounds (Salmon et al. 2011) ---------------------
//
// A draw is a function of the seed and of the place alone, whichever thread makes it.

struct Bits {
    __m512i word[4];  // 16 counters, 128 bits each
};

inline Bits philox(uint64_t seed, uint64_t first) {
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i x0 = _mm512_add_epi32(_mm512_set1_epi32((int)(first & 0xfffffff0u)), lane);
    __m512i x1 = _mm512_set1_epi32((int)(first >> 32)), x2 = _mm512_setzero_si512(), x3 = x2;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    auto high_and_low = [](__m512i x, __m512i m, __m512i& high, __m512i& low) {
        __m512i even = _mm512_mul_epu32(x, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
        high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
        low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    };
    for (int round = 0; round < 7; ++round) {
        __m512i h0, l0, h1, l1;
        high_and_low(x0, m0, h0, l0);
        high_and_low(x2, m1, h1, l1);
        x0 = _mm512_xor_si512(_mm512_xor_si512(h1, x1), _mm512_set1_epi32((int)k0));
        x2 = _mm512_xor_si512(_mm512_xor_si512(h0, x3), _mm512_set1_epi32((int)k1));
        x1 = l1;
        x3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {x0, x1, x2, x3};
}

// Which of the next `width` numbers of a row stay: a bit each, 16 to a word, 16 random bits to a number.
// `dropped` of 65,536 values drop one.
inline void draw_row(uint64_t seed, uint64_t row, int64_t width, uint32_t dropped, uint16_t* kept) {
    const __m512i limit = _mm512_set1_epi16((short)dropped);
    int64_t words = (width + LANES - 1) / LANES;
    for (int64_t block = 0; block * 8 < words; ++block) {  // 128 numbers from each call
        Bits bits = philox(seed, (row << 32) | (uint64_t)(block * 16));
        for (int part = 0; part < 4; ++part) {
            uint32_t found = _mm512_cmpge_epu16_mask(bits.word[part], limit);
            for (int half = 0; half < 2; ++half, found >>= 16)
                if (int64_t word = block * 8 + part * 2 + half; word < words) kept[word] = (uint16_t)found;
        }
    }
}

// -- threads: PyTorch's own OpenMP, which is in the process already and so is not linked -----------------

extern "C" {
__attribute__((weak, visibility("default"))) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
__attribute__((weak, visibility("default"))) int omp_get_thread_num(void);
__attribute__((weak, visibility("default"))) int omp_get_num_threads(void);
}

// Call work(begin, end, thread) for parts of `count` pieces.
template <class Work>
void share(int64_t count, int64_t threads, const Work& work) {
    threads = std::max<int64_t>(1, std::min(threads, count));
    if (threads == 1 || !GOMP_parallel) {
        work((int64_t)0, count, (int64_t)0);
        return;
    }
    struct Told {
        const Work& work;
        int64_t count;
    } told{work, count};
    auto part = [](void* given) {
        const Told& told = *(const Told*)given;
        int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        int64_t begin = told.count * thread / team, end = told.count * (thread + 1) / team;
        if (begin < end) told.work(begin, end, thread);
    };
    GOMP_parallel(part, &told, (unsigned)threads, 0);
}

// So many floats in whole cache lines.
struct Room {
    explicit Room(int64_t count)
        : numbers((float*)std::aligned_alloc(64, (size_t)((count * 4 + 63) / 64 * 64 + 64)), std::free) {}
    float* get() const { return numbers.get(); }
    std::unique_ptr<float, void (*)(void*)> numbers;
};

inline int64_t whole(int64_t count) { return (count + LANES - 1) / LANES * LANES; }
