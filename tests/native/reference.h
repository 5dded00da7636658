// What the kernels should compute, as plainly as it can be said, in double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels.h"

namespace reference {

inline double activate(double x, int32_t kind) {
  switch (kind) {
    case clearhead::RELU:
      return x != x ? x : x > 0 ? x : 0;
    case clearhead::GELU:
      return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case clearhead::GELU_TANH:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case clearhead::QUICK_GELU:
      return x / (1 + std::exp(-1.702 * x));
    case clearhead::SILU:
      return x / (1 + std::exp(-x));
    case clearhead::TANH:
      return std::tanh(x);
    default:
      return x;
  }
}

// Rounded to the nearest bfloat16, ties to even.
inline float to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t low = bits & 0xffff, odd = bits >> 16 & 1;
  bits &= 0xffff0000u;
  if (low > 0x8000 || (low == 0x8000 && odd)) bits += 0x10000;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct Sum {
  double value = 0, size = 0;  // Σ a·b and Σ |a·b|
};

inline Sum dot(const float* a, const float* b, int n) {
  Sum sum;
  for (int i = 0; i < n; ++i) {
    sum.value += double(a[i]) * b[i];
    sum.size += std::fabs(double(a[i]) * b[i]);
  }
  return sum;
}

inline double log_sum(const float* values, int n) {
  double top = -INFINITY, sum = 0;
  for (int i = 0; i < n; ++i) {
    if (values[i] != values[i]) return values[i];
    top = std::fmax(top, values[i]);
  }
  for (int i = 0; i < n; ++i) sum += std::exp(values[i] - top);
  return top + std::log(sum);
}

inline std::vector<double> normalise(const float* x, const float* weight, const float* bias, bool rms, double eps,
                                     int n) {
  double mean = 0, spread = 0;
  for (int i = 0; i < n; ++i) mean += rms ? 0 : double(x[i]) / n;
  for (int i = 0; i < n; ++i) spread += (x[i] - mean) * (x[i] - mean) / n;
  std::vector<double> y(n);
  for (int i = 0; i < n; ++i) y[i] = (x[i] - mean) / std::sqrt(spread + eps) * weight[i] + (bias ? bias[i] : 0);
  return y;
}

// Attention weights of one head: softmax(cap(scale · q·k + bias)).
inline std::vector<double> attention(const clearhead::AttentionShape& shape, const clearhead::Sight& sight, int head,
                                     const float* query) {
  const int group = head / (shape.heads / shape.groups);
  std::vector<double> weights(sight.count);
  double top = -INFINITY, sum = 0;
  for (int t = 0; t < sight.count; ++t) {
    double score = shape.scale * dot(query + head * shape.key_dim, sight.keys[t] + group * shape.key_dim,
                                     shape.key_dim).value;
    if (sight.bias) score += sight.bias[head * sight.bias_stride + t];
    if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
    weights[t] = score;
    top = std::fmax(top, score);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - top);
  for (double& weight : weights) weight /= sum;
  return weights;
}

}  // namespace reference
