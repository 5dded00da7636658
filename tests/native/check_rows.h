// Checks of what happens to one row between two products.
#pragma once

#include "check_products.h"

namespace checking {

using clearhead::AttentionShape;
using clearhead::Kernels;
using clearhead::Norm;
using clearhead::Sight;

constexpr int SIZES[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 512, 1023};

inline void fill(Random& random, const Guarded<float>& to, float factor = 1) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = factor * random.normal();
}

inline bool normalise(const Kernels& k) {
  Check check(k, "normalise");
  Random random(11);
  for (const int n : SIZES)
    for (int variant = 0; variant < 16; ++variant) {
      const bool rms = variant & 1, biased = variant & 2, in_place = variant & 4;
      const Guarded<float> x(n), to(n), weight(n), bias(n);
      fill(random, x, variant & 8 ? 1e4f : 1);
      fill(random, weight);
      fill(random, bias);
      if (variant == 15)
        for (int i = 0; i < n; ++i) x[i] = 0;
      const float eps = 1e-5f;
      const std::vector<double> wanted =
          reference::normalise(x.get(), weight.get(), biased ? bias.get() : nullptr, rms, eps, n);
      float high = 0;
      double spread = 0, mean = 0;
      for (int i = 0; i < n; ++i) high = std::fmax(high, std::fabs(x[i]));
      for (int i = 0; i < n; ++i) mean += rms ? 0 : double(x[i]) / n;
      for (int i = 0; i < n; ++i) spread += (x[i] - mean) * (x[i] - mean) / n;
      if (in_place) std::memcpy(to.get(), x.get(), n * sizeof(float));
      k.normalise({weight.get(), biased ? bias.get() : nullptr}, rms, eps, in_place ? to.get() : x.get(), to.get(), n);
      // The mean may be off by a rounding of the largest number, which the small spread of few numbers magnifies.
      const double unit = 16 * ROUNDING * (high / std::sqrt(spread + eps) + 1);
      for (int i = 0; i < n; ++i)
        check.near(to[i], wanted[i], unit * (std::fabs(weight[i]) + std::fabs(bias[i])), "n, at", n, i);
      x[random.below(n)] = NOT_A_NUMBER;
      k.normalise({weight.get(), nullptr}, rms, eps, x.get(), to.get(), n);
      for (int i = 0; i < n; ++i) check.holds(std::isnan(to[i]), "a NaN was lost (n = %d)", n);
      check.holds(to.intact(), "written past its end (n = %d)", n);
    }
  return check.finish();
}

// How the bytes look is the set's own business: a product whose columns pick one number each gives them back.
inline bool quantise(const Kernels& k) {
  Check check(k, "quantise");
  Random random(12);
  for (const int n : SIZES) {
    const int outputs = n < 40 ? n : 40;
    std::vector<float> picks(size_t(outputs) * n);
    for (int c = 0; c < outputs; ++c) picks[size_t(c) * n + n - 1 - c] = 127;
    const Packed m(k, clearhead::INT8, outputs, picks, std::vector<float>(outputs, 0.0f));
    Activations x(k, ROWS, n);
    for (int r = 0; r < ROWS; ++r)
      for (int i = 0; i < n; ++i) {
        const float one = random.normal();
        const float tried[] = {1e20f * one, 1e-20f * one, i % 2 ? 0.0f : -0.0f, std::fabs(one), -std::fabs(one), 2.5f};
        x.row(r)[i] = r < 6 ? tried[r] : i % 3 ? one : 0.0f;
      }
    for (const int r : {6, 7, 8})
      x.row(r)[random.below(n)] = r == 6 ? NOT_A_NUMBER : r == 7 ? INFINITE : -INFINITE;
    x.quantise(k);
    check.holds(x.bytes.intact() && x.scale.intact() && x.zero.intact(), "written past its end (n = %d)", n);
    Results all(m);
    all.multiply(k, m, x.input(), 0, ROWS);
    for (int r = 0; r < ROWS; ++r) {
      double low = 0, high = 0;
      for (int i = 0; i < n; ++i) {
        low = std::fmin(low, x.row(r)[i]);
        high = std::fmax(high, x.row(r)[i]);
      }
      const bool strange = r > 5 && r < 9;
      const double scale = strange ? NOT_A_NUMBER : (high - low) / 255;
      check.near(x.scale[r], scale, 1e-6 * scale, "scale (n, row)", n, r);
      for (int c = 0; c < outputs; ++c) {
        const float wanted = x.row(r)[n - 1 - c];
        check.near(all.at(r, c) / 127, strange ? NOT_A_NUMBER : wanted, wanted == 0 ? 0 : 0.501 * scale, "n, column", n, c);
      }
    }
  }
  return check.finish();
}

inline bool gate(const Kernels& k) {
  Check check(k, "gate");
  Random random(13);
  for (const int n : SIZES)
    for (int32_t kind = clearhead::NO_ACTIVATION; kind <= clearhead::TANH; ++kind) {
      const Guarded<float> row(2 * n), before(2 * n);
      fill(random, before, 3);
      before[random.below(n)] = NOT_A_NUMBER;
      std::memcpy(row.get(), before.get(), 2 * n * sizeof(float));
      k.gate(row.get(), n, kind);
      for (int i = 0; i < n; ++i) {
        const double other = before[n + i], wanted = reference::activate(before[i], kind) * other;
        check.near(row[i], wanted, 5e-7 * std::fabs(other) * std::fmax(1, std::fabs(before[i])), "n, at", n, i);
        check.same(row[n + i], before[n + i], "second half", n, i);
      }
      check.holds(row.intact(), "written past its end (n = %d)", n);
    }
  return check.finish();
}

inline bool rotate(const Kernels& k) {
  Check check(k, "rotate");
  Random random(14);
  for (const int size : {2, 4, 6, 8, 10, 30, 32, 34, 64, 128, 130})
    for (int variant = 0; variant < 4; ++variant) {
      const bool halves = variant & 1, in_place = variant & 2;
      const int pairs = size / 2;
      const Guarded<float> x(size), to(size), cosine(pairs), sine(pairs);
      fill(random, x);
      for (int i = 0; i < pairs; ++i) {
        const float angle = 3 * random.normal();
        cosine[i] = std::cos(angle);
        sine[i] = std::sin(angle);
      }
      if (in_place) std::memcpy(to.get(), x.get(), size * sizeof(float));
      k.rotate(in_place ? to.get() : x.get(), to.get(), size, cosine.get(), sine.get(), halves);
      for (int i = 0; i < pairs; ++i) {
        const int one = halves ? i : 2 * i, other = halves ? i + pairs : 2 * i + 1;
        const double a = x[one], b = x[other], allowed = 3 * ROUNDING * (std::fabs(a) + std::fabs(b));
        check.near(to[one], a * cosine[i] - b * sine[i], allowed, "first of pair", size, i);
        check.near(to[other], b * cosine[i] + a * sine[i], allowed, "second of pair", size, i);
      }
      check.holds(to.intact(), "written past its end (size %d)", size);
    }
  return check.finish();
}

// One row of attention over `count` tokens; `strange` puts a NaN into the query.
inline void check_attention(Check& check, const Kernels& k, const AttentionShape& shape, int count, bool biased,
                            bool strange) {
  Random random(uint64_t(count) * 64 + biased * 2 + strange);
  const int keys = shape.groups * shape.key_dim, values = shape.groups * shape.value_dim;
  const Guarded<float> store(size_t(count) * (keys + values)), query(shape.heads * shape.key_dim);
  const int padded = (count + clearhead::MOST_LANES - 1) / clearhead::MOST_LANES * clearhead::MOST_LANES;
  const Guarded<float> scores(padded + clearhead::MOST_LANES), to(shape.heads * shape.value_dim), shares(count);
  const Guarded<float> bias(size_t(shape.heads) * (count + 3));
  fill(random, store);
  fill(random, query);
  fill(random, bias, 2);
  if (count > 2) bias[1] = -INFINITE;  // a token that head 0 must not see
  if (strange) query[0] = NOT_A_NUMBER;
  std::vector<const float*> tokens(count);
  for (int t = 0; t < count; ++t) tokens[(t * 7 + 3) % count] = store.get() + size_t(t) * (keys + values);
  if (count % 7 == 0)  // 7 does not walk through all of them
    for (int t = 0; t < count; ++t) tokens[t] = store.get() + size_t(t) * (keys + values);
  const Sight sight{tokens.data(), count, keys, biased ? bias.get() : nullptr, count + 3};
  for (int group = 0; group < shape.groups; ++group)
    k.attend(shape, group, query.get(), sight, scores.get(), to.get(), shares.get());
  std::vector<double> wanted_shares(count);
  for (int head = 0; head < shape.heads; ++head) {
    const std::vector<double> weights = reference::attention(shape, sight, head, query.get());
    const int group = head / (shape.heads / shape.groups);
    for (int t = 0; t < count; ++t) wanted_shares[t] += weights[t] / shape.heads;
    for (int i = 0; i < shape.value_dim; ++i) {
      double value = 0, size = 0;
      for (int t = 0; t < count; ++t) {
        const double v = tokens[t][keys + group * shape.value_dim + i];
        value += weights[t] * v;
        size += weights[t] * std::fabs(v);
      }
      check.near(to[head * shape.value_dim + i], strange && head == 0 ? NOT_A_NUMBER : value, 4e-6 * size + 1e-7,
                 "head, at", head, i);
    }
  }
  for (int t = 0; t < count; ++t)
    check.near(shares[t], strange ? NOT_A_NUMBER : wanted_shares[t], 4e-6 * wanted_shares[t] + 1e-8, "share", count, t);
  check.holds(to.intact() && scores.intact() && shares.intact(), "written past its end (%d tokens)", count);
}

inline bool attend(const Kernels& k) {
  Check check(k, "attend");
  for (const int count : {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 33, 100})
    for (const int size : {1, 3, 4, 8, 20, 64, 72, 128})
      for (int variant = 0; variant < 4; ++variant) {
        const bool grouped = variant & 1, capped = variant & 2;
        const AttentionShape shape{4, grouped ? 2 : 4, size, grouped ? size + 5 : size,
                                   1.0f / std::sqrt(float(size)), capped ? 5.0f : 0.0f};
        check_attention(check, k, shape, count, !capped && count % 2 == 1, false);
        if (size == 20) check_attention(check, k, shape, count, false, true);
      }
  return check.finish();
}

}  // namespace checking
