// Activations and their slopes, sixteen numbers at a time. The numbers are those of `KINDS` in layers.py.

#pragma once

#include "vectors.h"

enum Kind : int32_t { RELU, GELU, GELU_TANH, QUICK_GELU, SILU, TANH };

struct Bend {
    Vector value, slope;
};

// 1 / (1 + e^−x)
inline Vector sigmoid(Vector x) {
    return _mm512_div_ps(all(1.0f), _mm512_add_ps(all(1.0f), exponential(_mm512_sub_ps(all(0.0f), x))));
}

inline Vector hyperbolic(Vector x) { return _mm512_fmsub_ps(all(2.0f), sigmoid(_mm512_mul_ps(all(2.0f), x)), all(1.0f)); }

// x · σ(c x), whose slope is σ + c x σ (1 − σ)
inline Bend swish(Vector x, float c) {
    const Vector share = sigmoid(_mm512_mul_ps(all(c), x)), value = _mm512_mul_ps(x, share);
    return {value, _mm512_fmadd_ps(_mm512_mul_ps(all(c), value), _mm512_sub_ps(all(1.0f), share), share)};
}

// Φ(x) = (1 + erf(x / √2)) / 2 to 1e-7 (Abramowitz and Stegun 7.1.26), from p(t) e^(−x²/2) with t = 1 / (1 + 0.33 |x| / √2)
inline Bend gelu(Vector x) {
    const Vector power = exponential(_mm512_mul_ps(all(-0.5f), _mm512_mul_ps(x, x)));
    const Vector size = _mm512_mul_ps(_mm512_abs_ps(x), all(0.70710678f));
    const Vector t = _mm512_div_ps(all(1.0f), _mm512_fmadd_ps(all(0.3275911f), size, all(1.0f)));
    Vector p = all(1.061405429f);
    for (float next : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = _mm512_fmadd_ps(p, t, all(next));
    const Vector tail = _mm512_mul_ps(_mm512_mul_ps(all(0.5f), _mm512_mul_ps(p, t)), power);  // Φ(−|x|)
    const __mmask16 right = _mm512_cmp_ps_mask(x, all(0.0f), _CMP_GT_OQ);
    const Vector share = _mm512_mask_sub_ps(tail, right, all(1.0f), tail);
    return {_mm512_mul_ps(x, share), _mm512_fmadd_ps(_mm512_mul_ps(x, all(0.39894228f)), power, share)};
}

// x (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³)
inline Bend gelu_tanh(Vector x) {
    const Vector square = _mm512_mul_ps(x, x);
    const Vector u = _mm512_mul_ps(_mm512_mul_ps(x, all(0.79788456f)), _mm512_fmadd_ps(all(0.044715f), square, all(1.0f)));
    const Vector t = hyperbolic(u), share = _mm512_fmadd_ps(all(0.5f), t, all(0.5f));
    const Vector rise = _mm512_mul_ps(all(0.79788456f), _mm512_fmadd_ps(all(0.134145f), square, all(1.0f)));
    const Vector steep = _mm512_mul_ps(_mm512_mul_ps(all(0.5f), x), _mm512_fnmadd_ps(t, t, all(1.0f)));
    return {_mm512_mul_ps(x, share), _mm512_fmadd_ps(steep, rise, share)};
}

inline Bend bend(Vector x, int32_t kind) {
    switch (kind) {
        case GELU: return gelu(x);
        case GELU_TANH: return gelu_tanh(x);
        case QUICK_GELU: return swish(x, 1.702f);
        case SILU: return swish(x, 1.0f);
        case TANH: {
            const Vector t = hyperbolic(x);
            return {t, _mm512_fnmadd_ps(t, t, all(1.0f))};
        }
        default: {
            const __mmask16 alive = _mm512_cmp_ps_mask(x, all(0.0f), _CMP_NLE_UQ);  // NaN stays NaN
            return {_mm512_maskz_mov_ps(alive, x), _mm512_maskz_mov_ps(alive, all(1.0f))};
        }
    }
}
