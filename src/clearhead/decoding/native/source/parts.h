// What happens to one row between two products: norm, quantisation, rotation, attention.
#pragma once

#include "int8.h"

namespace clearhead {
namespace {

// Σ f(x) over a row: whole vectors first, then the rest one by one.
template <class F>
inline float total(const float* x, int n, F f) {
  Floats sums{};
  int i = 0;
  for (; i + LANES <= n; i += LANES) sums += f(load(x + i));
  float rest = sum(sums);
  for (; i < n; ++i) {
    const Floats one = f(all(x[i]));
    rest += one[0];
  }
  return rest;
}

inline void normalise(const Norm& norm, bool rms, float eps, const float* x, float* to, int n) {
  const float mean = rms ? 0.0f : total(x, n, [](Floats v) { return v; }) / n;
  const float spread = total(x, n, [mean](Floats v) { return (v - mean) * (v - mean); }) / n;
  const float factor = 1.0f / __builtin_sqrtf(spread + eps);
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    Floats v = (load(x + i) - mean) * factor * load(norm.weight + i);
    if (norm.bias) v += load(norm.bias + i);
    store(to + i, v);
  }
  for (; i < n; ++i) to[i] = (x[i] - mean) * factor * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

// x ≈ scale · (byte − zero), with the row's own range spread over 0..255 and 0 itself exact.
inline void quantise(const float* x, int n, uint8_t* to, float* scale, int32_t* zero) {
  Floats low{}, high{}, odd{};
  each_vector(x, n, [&](Floats v, int) {
    low = smaller(v, low);
    high = larger(v, high);
    odd += v * 0.0f;  // not a number if any of them is not, and then the scale is not either
  });
  const float least = -largest(-low), most = largest(high), strange = sum(odd);
  const float width = most - least, inverse = width < SMALLEST || strange != 0 ? 0.0f : 255.0f / width;
  const int32_t base = strange != 0 ? 0 : int32_t(rounded(-least * inverse) + 0.5f);
  *scale = width / 255.0f + strange;
  *zero = 0;
  const float shift = float(base) + 0.5f;
  each_vector(x, n, [&](Floats v, int at) {  // what lies beyond the row meets weights that are 0
    v = smaller(larger(rounded(v * inverse) + shift, Floats{}), all(255.0f));
    *zero = put_quantised(to, at, __builtin_convertvector(v, Ints), base);  // infinity and NaN too: the scale tells
  });
}

// Turn the pairs of one head by a position's angles; `halves` pairs i with i + size/2, else neighbours.
inline void rotate(const float* x, float* to, int size, const float* cosine, const float* sine, bool halves) {
  const int pairs = size / 2;
  for (int i = 0; i < pairs; ++i) {
    const int one = halves ? i : 2 * i, other = halves ? i + pairs : 2 * i + 1;
    const float a = x[one], b = x[other];
    to[one] = a * cosine[i] - b * sine[i];
    to[other] = b * cosine[i] + a * sine[i];
  }
}

// scores[t] = scale · q · key of token t, four tokens at a time; there is room for a few more than `count`. N: the
// vectors of a head, where it is made of so many; 0: of any number.
template <int N>
inline void compare(const float* q, const float* const* keys, int offset, int size, int count, float scale,
                    float* scores) {
  Floats own[N ? N : 1];
  for (int v = 0; v < N; ++v) own[v] = load(q + v * LANES);
  const int last = count - 1;
  for (int t = 0; t < count; t += 4) {
    const float *a = keys[t] + offset, *b = keys[least(t + 1, last)] + offset,
                *c = keys[least(t + 2, last)] + offset, *d = keys[least(t + 3, last)] + offset;
    Floats sums[4] = {};
    int i = 0;
    for (; i + LANES <= (N ? N * LANES : size); i += LANES) {
      const Floats x = N ? own[i / LANES] : load(q + i);
      sums[0] += x * load(a + i);
      sums[1] += x * load(b + i);
      sums[2] += x * load(c + i);
      sums[3] += x * load(d + i);
    }
    float totals[4];
    four_sums(sums[0], sums[1], sums[2], sums[3], totals);
    for (; !N && i < size; ++i) {
      totals[0] += q[i] * a[i];
      totals[1] += q[i] * b[i];
      totals[2] += q[i] * c[i];
      totals[3] += q[i] * d[i];
    }
    for (int j = 0; j < 4; ++j) scores[t + j] = totals[j] * scale;
  }
}

// scores[t] becomes e^(scores[t] − largest); returns their sum. There is room up to whole vectors.
inline float soften(float* scores, int count) {
  const int padded = up_to_whole(count, LANES);
  for (int t = count; t < padded; ++t) scores[t] = -INFINITE;
  Floats high = load(scores);
  for (int t = LANES; t < padded; t += LANES) high = larger(high, load(scores + t));
  const float top = largest(high);
  Floats sums{};
  for (int t = 0; t < padded; t += LANES) {
    const Floats e = exponential(load(scores + t) - top);
    store(scores + t, e);
    sums += e;
  }
  for (int t = count; t < padded; ++t) scores[t] = 0;
  return sum(sums);
}

// A few vectors of Σ weights[t] · value of token t, in two chains of sums each, so that none waits for the last.
template <int N>
inline void mix_vectors(const float* weights, const Sight& sight, int offset, float share, float* to) {
  Floats even[N] = {}, odd[N] = {};
  int t = 0;
  for (; t + 2 <= sight.count; t += 2) {
    const float *v = sight.keys[t] + offset, *u = sight.keys[t + 1] + offset;
    for (int j = 0; j < N; ++j) even[j] += weights[t] * load(v + j * LANES);
    for (int j = 0; j < N; ++j) odd[j] += weights[t + 1] * load(u + j * LANES);
  }
  if (t < sight.count)
    for (int j = 0; j < N; ++j) even[j] += weights[t] * load(sight.keys[t] + offset + j * LANES);
  for (int j = 0; j < N; ++j) store(to + j * LANES, (even[j] + odd[j]) * share);
}

// to = Σ weights[t] · value of token t, divided by `whole`.
inline void mix(const float* weights, float whole, const Sight& sight, int offset, int size, float* to) {
  const float share = 1.0f / whole;
  int i = 0;
  for (; i + 4 * LANES <= size; i += 4 * LANES) mix_vectors<4>(weights, sight, offset + i, share, to + i);
  for (; i + 2 * LANES <= size; i += 2 * LANES) mix_vectors<2>(weights, sight, offset + i, share, to + i);
  for (; i + LANES <= size; i += LANES) mix_vectors<1>(weights, sight, offset + i, share, to + i);
  for (; i < size; ++i) {
    float a = 0;
    for (int t = 0; t < sight.count; ++t) a += weights[t] * sight.keys[t][offset + i];
    to[i] = a * share;
  }
}

inline void attend(const AttentionShape& shape, int group, const float* query, const Sight& sight, float* scores,
                   float* to, float* shares) {
  const int size = shape.key_dim, share = shape.heads / shape.groups, offset = group * size;
  for (int head = group * share; head < (group + 1) * share; ++head) {
    const float* q = query + head * size;
    const auto compared = size == 2 * LANES ? compare<2> : size == 4 * LANES ? compare<4> : compare<0>;
    compared(q, sight.keys, offset, size, sight.count, shape.scale, scores);
    if (sight.bias)
      for (int t = 0; t < sight.count; ++t) scores[t] += sight.bias[head * sight.bias_stride + t];
    if (shape.softcap > 0)  // up to whole vectors: there is room, and nobody reads what lies beyond
      for (int t = 0; t < sight.count; t += LANES)
        store(scores + t, shape.softcap * hyperbolic(load(scores + t) / shape.softcap));
    const float whole = soften(scores, sight.count);
    if (shares)
      for (int t = 0; t < sight.count; ++t) shares[t] += scores[t] / (whole * shape.heads);
    mix(scores, whole, sight, sight.value_offset + group * shape.value_dim, shape.value_dim,
        to + head * shape.value_dim);
  }
}

// The first half of a row becomes activation(first half) · second half.
inline void gate(float* row, int n, int32_t activation) {
  int i = 0;
  for (; i + LANES <= n; i += LANES) store(row + i, activate(load(row + i), activation) * load(row + n + i));
  for (; i < n; ++i) {
    const Floats one = activate(all(row[i]), activation);
    row[i] = one[0] * row[n + i];
  }
}

// log Σ e^x of a row, from its panels' shares.
inline float log_sum(const float* peaks, int panels) {
  float top = peaks[0];
  for (int p = 1; p < panels; ++p) top = peaks[2 * p] > top ? peaks[2 * p] : top;
  double total = 0;
  for (int p = 0; p < panels; p += LANES) {
    Floats away{}, share{};
    for (int j = 0; j < LANES && p + j < panels; ++j) {
      away[j] = peaks[2 * (p + j)] - top;
      share[j] = peaks[2 * (p + j) + 1];
    }
    total += sum(exponential(away) * share);
  }
  return top + float(__builtin_log(total));
}

}  // namespace
}  // namespace clearhead
