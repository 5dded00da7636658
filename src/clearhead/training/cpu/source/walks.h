// What a layer does between its products, each in one walk over tokens: dropout, residual sum and norm;
// bias and activation; their gradients, and the sums over tokens that parameters need.
//
// Shapes: rows are tokens, width is that of the model or of the feed-forward net.

#pragma once

#include "vectors.h"

// norm(x + dropout(added)), or norm(x) where nothing is added. A bit for each number says whether dropout
// kept it. Without a shift it is the root mean square that rows are divided by, and no mean is taken off.
struct Norm {
    const bf16 *x, *added, *gain, *shift;
    bf16 *total, *y;
    float *mean, *deviation;  // of each row, 0 where none is taken off; the second as 1/√(σ² + ε)
    uint16_t* kept;           // rows × whole words; none: nothing is dropped
    int64_t rows, width;
    uint64_t seed;
    uint32_t dropped;  // of 65,536
    float factor, epsilon;
};

inline Vector masked(Vector x, const uint16_t* kept, int64_t i, Vector factor) {
    return kept ? _mm512_maskz_mul_ps(kept[i / LANES], x, factor) : x;
}

inline void norm_row(const Norm& told, int64_t row, float* sums) {
    const int64_t width = told.width, words = whole(width) / LANES;
    const bf16* x = told.x + row * width;
    const bf16* added = told.added ? told.added + row * width : nullptr;
    uint16_t* kept = told.kept ? told.kept + row * words : nullptr;
    if (kept) draw_row(told.seed, (uint64_t)row, width, told.dropped, kept);
    Vector total = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 in = inside(width - i);
        Vector sum = load(x + i, in);
        if (added) {
            sum = _mm512_add_ps(sum, masked(load(added + i, in), kept, i, all(told.factor)));
            store(told.total + row * width + i, sum, in);
            sum = widened(rounded(sum));  // as the backward pass will read it
        }
        total = _mm512_add_ps(total, sum);
        _mm512_store_ps(sums + i, sum);
    }
    const float mean = told.shift ? _mm512_reduce_add_ps(total) / (float)width : 0.0f;
    Vector squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += LANES) {
        Vector apart = _mm512_maskz_sub_ps(inside(width - i), _mm512_load_ps(sums + i), all(mean));
        squares = _mm512_fmadd_ps(apart, apart, squares);
    }
    const float deviation = 1 / std::sqrt(_mm512_reduce_add_ps(squares) / (float)width + told.epsilon);
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 in = inside(width - i);
        Vector normal = _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(sums + i), all(mean)), all(deviation));
        const Vector shift = told.shift ? load(told.shift + i, in) : all(0.0f);
        store(told.y + row * width + i, _mm512_fmadd_ps(normal, load(told.gain + i, in), shift), in);
    }
    told.mean[row] = mean;
    told.deviation[row] = deviation;
}

struct NormGradient {
    const bf16 *dy, *total, *gain;
    const float *mean, *deviation;
    const uint16_t* kept;
    bf16 *d_total, *d_added;  // the second only where something is dropped
    int64_t rows, width;
    float factor;
    int32_t centred;  // whether a mean was taken off
};

// `sums` is where gradients of gain and shift are added up: two rows of whole vectors.
inline void norm_row_backward(const NormGradient& told, int64_t row, float* sums) {
    const int64_t width = told.width, across = whole(width), words = across / LANES;
    const bf16 *dy = told.dy + row * width, *total = told.total + row * width;
    const uint16_t* kept = told.kept ? told.kept + row * words : nullptr;
    const Vector mean = all(told.mean[row]), deviation = all(told.deviation[row]);
    Vector first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 in = inside(width - i);
        const Vector slope = load(dy + i, in), inner = _mm512_mul_ps(slope, load(told.gain + i, in));
        const Vector normal = _mm512_mul_ps(_mm512_sub_ps(load(total + i, in), mean), deviation);
        first = _mm512_add_ps(first, inner);
        second = _mm512_fmadd_ps(inner, normal, second);
        _mm512_store_ps(sums + i, _mm512_fmadd_ps(slope, normal, _mm512_load_ps(sums + i)));
        _mm512_store_ps(sums + across + i, _mm512_add_ps(slope, _mm512_load_ps(sums + across + i)));
    }
    const Vector level = all(told.centred ? _mm512_reduce_add_ps(first) / (float)width : 0.0f);
    const Vector tilt = all(_mm512_reduce_add_ps(second) / (float)width);
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 in = inside(width - i);
        const Vector normal = _mm512_mul_ps(_mm512_sub_ps(load(total + i, in), mean), deviation);
        Vector slope = _mm512_fmsub_ps(load(dy + i, in), load(told.gain + i, in), level);
        slope = _mm512_mul_ps(_mm512_fnmadd_ps(normal, tilt, slope), deviation);
        store(told.d_total + row * width + i, slope, in);
        if (kept) store(told.d_added + row * width + i, masked(slope, kept, i, all(told.factor)), in);
    }
}
