// Smoothed cross-entropy of rows of scores, and its gradient in the scores' own place.
//
// With z one row, l = log_softmax(z), ε the smoothing and ζ the weight of the z-loss:
//
//     (1−ε)·(−l[label]) + ε·mean(−l) + ζ·(log Σ exp z)²      d/dz = softmax(z)·(1 + 2ζ·log Σ exp z) − ε/V − (1−ε)·[label]
//
// A row is read once from memory: what follows finds it in the first caches, and each number's exponential is
// computed once.

#pragma once

#include "vectors.h"

struct Loss {
    bf16* scores;  // rows × classes; becomes the gradient
    const int64_t* labels;
    int64_t rows, classes, ignored;
    float smoothing, z_loss;
};

// The objective and the plain loss of one row.
inline void row_loss(const Loss& told, int64_t row, float* powers, double& objective, double& plain) {
    bf16* z = told.scores + row * told.classes;
    const int64_t label = told.labels[row], classes = told.classes;
    if (label == told.ignored) {
        std::fill(z, z + classes, 0);
        return;
    }
    Vector top = all(-INFINITY), total = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < classes; i += LANES) {
        const __mmask16 in = inside(classes - i);
        top = _mm512_mask_max_ps(top, in, top, load(z + i, in));
    }
    const float highest = _mm512_reduce_max_ps(top);
    for (int64_t i = 0; i < classes; i += LANES) {
        const __mmask16 in = inside(classes - i);
        const Vector x = load(z + i, in);
        const Vector e = _mm512_maskz_mov_ps(in, exponential(_mm512_sub_ps(x, all(highest))));
        sum = _mm512_add_ps(sum, e);
        total = _mm512_add_ps(total, x);
        _mm512_store_ps(powers + i, e);
    }
    const float powers_sum = _mm512_reduce_add_ps(sum), log_sum = highest + std::log(powers_sum);
    const bool known = label >= 0 && label < classes;
    const float right = known ? as_float(z[label]) : NAN, exact = log_sum - right;
    const float spread = log_sum - _mm512_reduce_add_ps(total) / (float)classes;
    objective += (1 - told.smoothing) * exact + told.smoothing * spread + told.z_loss * log_sum * log_sum;
    plain += exact;
    const Vector factor = all((1 + 2 * told.z_loss * log_sum) / powers_sum);
    const Vector less = all(told.smoothing / (float)classes);
    for (int64_t i = 0; i < classes; i += LANES)
        store(z + i, _mm512_fmsub_ps(_mm512_load_ps(powers + i), factor, less), inside(classes - i));
    if (!known) return;
    const float slope = powers[label] * _mm512_cvtss_f32(factor) - _mm512_cvtss_f32(less) - (1 - told.smoothing);
    store(z + label, all(slope), 1);
}
