// Checks of packing and products: float32, bfloat16, int8; bias, activation, residual sum, share of the softmax.
#pragma once

#include "checking.h"
#include "reference.h"

namespace checking {

using clearhead::Input;
using clearhead::Kernels;
using clearhead::Kind;
using clearhead::Matrix;
using clearhead::Output;

constexpr int ROWS = 13;  // more than two of any set's tiles
constexpr int WIDTHS[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 64, 100, 259};

inline std::vector<int> column_counts(const Kernels& k) {
  return {1, 3, k.panel - 1, k.panel, k.panel + 1, 2 * k.panel + 5};
}

// A packed matrix in memory of exactly the size that the set asks for.
struct Packed : Matrix {
  Guarded<char> own_weights;
  Guarded<float> own_scale, own_bias;
  Guarded<int32_t> own_sums;

  Packed(const Kernels& k, Kind kind_, int outputs_, const std::vector<float>& from, const std::vector<float>& bias_,
         float beyond = 0)
      : Matrix{},
        own_weights((outputs_ + k.panel - 1) / k.panel * k.panel_bytes(kind_, int(from.size() / outputs_)), 77),
        own_scale(size_t(outputs_ + k.panel - 1) / k.panel * k.panel, NOT_A_NUMBER),
        own_bias(own_scale.size(), beyond),
        own_sums(own_scale.size(), -1) {
    outputs = outputs_;
    inputs = int(from.size() / outputs_);
    panels = (outputs + k.panel - 1) / k.panel;
    kind = kind_;
    panel_bytes = k.panel_bytes(kind, inputs);
    weights = own_weights.get();
    scale = own_scale.get();
    sums = own_sums.get();
    bias = own_bias.get();
    for (int c = 0; c < outputs; ++c) own_bias[c] = bias_[c];
    for (int p = panels - 1; p >= 0; --p) k.pack_panel(*this, p, from.data());
  }
  bool intact() const {
    return own_weights.intact() && own_scale.intact() && own_bias.intact() && own_sums.intact();
  }
};

// Rows of activations, with their int8 form where it is wanted.
struct Activations {
  int rows, inputs, stride, byte_stride;
  Guarded<float> floats;
  Guarded<uint8_t> bytes;
  Guarded<float> scale;
  Guarded<int32_t> zero;

  Activations(const Kernels& k, int rows_, int inputs_)
      : rows(rows_), inputs(inputs_), stride(inputs_ + 3), byte_stride(k.quantised_bytes(inputs_) + 5),
        floats(size_t(rows_) * stride - 3), bytes(size_t(rows_) * byte_stride - 5), scale(rows_), zero(rows_) {}

  float* row(int r) const { return floats.get() + size_t(r) * stride; }
  void quantise(const Kernels& k) {
    for (int r = 0; r < rows; ++r)
      k.quantise(row(r), inputs, bytes.get() + size_t(r) * byte_stride, &scale[r], &zero[r]);
  }
  Input input() const { return {floats.get(), stride, bytes.get(), byte_stride, scale.get(), zero.get()}; }
};

// (rows, outputs + 3) of products; what lies between the rows must stay as it is.
struct Results {
  static constexpr float UNTOUCHED = -7.25f;
  int64_t stride;
  Guarded<float> floats;

  explicit Results(const Matrix& m) : stride(m.outputs + 3), floats(ROWS * size_t(stride) - 3, UNTOUCHED) {}

  void multiply(const Kernels& k, const Matrix& m, const Input& x, int begin, int end, bool add = false,
                int32_t activation = clearhead::NO_ACTIVATION) {
    const Output out{floats.get(), stride, activation, add, nullptr};
    for (int p = 0; p < m.panels; ++p) k.product(m, p, x, begin, end, p + 1 < m.panels, out);
  }
  float at(int r, int c) const { return floats[size_t(r) * stride + c]; }
  bool whole(int outputs) const {
    for (int r = 0; r + 1 < ROWS; ++r)
      for (int c = outputs; c < stride; ++c)
        if (at(r, c) != UNTOUCHED) return false;
    return floats.intact();
  }
};

inline std::vector<float> numbers(Random& random, size_t count) {
  std::vector<float> made(count);
  for (float& one : made) one = random.normal();
  return made;
}

// Any rows alone give the same as all rows together, bit for bit, and the residual sum is what stood there plus that.
inline void check_rows_alone(Check& check, const Kernels& k, const Packed& m, const Activations& x,
                             const Results& all) {
  for (int height = 1; height <= ROWS; ++height) {
    const int begin = height % 2 ? ROWS - height : height * 5 % (ROWS - height + 1), end = begin + height;
    Results some(m), sum(m);
    some.multiply(k, m, x.input(), begin, end);
    sum.multiply(k, m, x.input(), begin, end, true);
    for (int r = 0; r < ROWS; ++r)
      for (int c = 0; c < m.outputs; ++c) {
        const bool inside = begin <= r && r < end;
        check.same(some.at(r, c), inside ? all.at(r, c) : Results::UNTOUCHED, "row among fewer", r, c);
        check.same(sum.at(r, c), inside ? Results::UNTOUCHED + all.at(r, c) : Results::UNTOUCHED, "residual", r, c);
      }
    check.holds(some.whole(m.outputs) && sum.whole(m.outputs), "written outside of the row (%d outputs)", m.outputs);
  }
}

// Ordinary rows, and one each of zeros, negative zeros, huge, tiny, NaN and infinite numbers.
inline void fill_rows(Random& random, const Activations& x) {
  for (int r = 0; r < x.rows; ++r)
    for (int i = 0; i < x.inputs; ++i) {
      const float factor = r == 1 ? 0.0f : r == 3 ? 1e18f : r == 4 ? 1e-20f : 1.0f;
      x.row(r)[i] = r == 2 ? -0.0f : factor * random.normal();
    }
  x.row(5)[random.below(x.inputs)] = NOT_A_NUMBER;
  x.row(6)[random.below(x.inputs)] = INFINITE;
  x.row(7)[random.below(x.inputs)] = -INFINITE;
}

inline bool float_products(const Kernels& k, Kind kind) {
  Check check(k, kind == clearhead::FLOAT32 ? "product float32" : "product bfloat16");
  Random random(1);
  for (const int outputs : column_counts(k))
    for (const int inputs : WIDTHS) {
      std::vector<float> w = numbers(random, size_t(outputs) * inputs), bias = numbers(random, outputs);
      const Packed m(k, kind, outputs, w, bias);
      if (kind == clearhead::BFLOAT16)
        for (float& one : w) one = reference::to_bfloat16(one);
      const Activations x(k, ROWS, inputs);
      fill_rows(random, x);
      Results all(m);
      all.multiply(k, m, x.input(), 0, ROWS);
      for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < outputs; ++c) {
          const reference::Sum sum = reference::dot(x.row(r), &w[size_t(c) * inputs], inputs);
          const double allowed = (inputs + 2) * ROUNDING * (sum.size + std::fabs(bias[c])) + 1e-37;
          check.near(all.at(r, c), sum.value + bias[c], allowed, "row, column", r, c);
        }
      check_rows_alone(check, k, m, x, all);
      check.holds(m.intact(), "packing wrote past its memory (%d × %d)", outputs, inputs);
    }
  return check.finish();
}

// Rows of whole numbers whose int8 form is exact: they reach from −zero to 255 − zero. The first two rows are 255
// or −255 everywhere, the next ones hold extremes only.
inline void fill_whole_numbers(Random& random, const Activations& x) {
  for (int r = 0; r < x.rows; ++r) {
    if (x.inputs == 1 || r < 2) {
      for (int i = 0; i < x.inputs; ++i) x.row(r)[i] = r % 2 ? -255.0f : 255.0f;
      continue;
    }
    const int zero = r == 2 ? 0 : r == 3 ? 255 : random.below(256);
    for (int i = 0; i < x.inputs; ++i) {
      const int extreme = (r == 4 ? i : random.below(2)) % 2 * 255;
      x.row(r)[i] = float((r < 8 ? extreme : random.below(256)) - zero);
    }
    const int at = random.below(x.inputs);
    x.row(r)[at] = float(-zero);
    x.row(r)[(at + 1) % x.inputs] = float(255 - zero);
  }
}

// Sums of whole numbers are exact, whatever the extremes: where 16 bits would overflow they must not saturate.
inline bool int8_sums(const Kernels& k) {
  Check check(k, "product int8, exact sums");
  Random random(2);
  for (const int outputs : column_counts(k))
    for (const int inputs : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 64, 100, 259, 1030}) {
      std::vector<float> w(size_t(outputs) * inputs);
      for (int c = 0; c < outputs; ++c)
        for (int i = 0; i < inputs; ++i) {
          const int sign = c % 5 == 0 || (c % 5 == 2 && i % 2) || (c % 5 == 3 && i / 2 % 2) ? 1 : -1;
          const bool extreme = c % 5 < 4 || i == c % inputs;  // each column has a ±127, so that its scale is 1
          w[size_t(c) * inputs + i] = float(extreme ? sign * 127 : random.below(255) - 127);
        }
      const Packed m(k, clearhead::INT8, outputs, w, std::vector<float>(outputs, 0.0f));
      Activations x(k, ROWS, inputs);
      fill_whole_numbers(random, x);
      x.quantise(k);
      Results all(m);
      all.multiply(k, m, x.input(), 0, ROWS);
      for (int r = 0; r < ROWS; ++r) {
        check.same(x.scale[r], 1.0f, "scale of row", r, inputs);
        for (int c = 0; c < outputs; ++c) {
          int64_t sum = 0;
          for (int i = 0; i < inputs; ++i) sum += int64_t(x.row(r)[i]) * int64_t(w[size_t(c) * inputs + i]);
          check.same(all.at(r, c), float(sum), "row, column", r, c);
        }
      }
      check_rows_alone(check, k, m, x, all);
      check.holds(m.intact() && x.bytes.intact(), "written past its memory (%d × %d)", outputs, inputs);
    }
  return check.finish();
}

// Ordinary numbers: as far from the exact product as rounding both sides to 8 bits allows.
inline bool int8_products(const Kernels& k) {
  Check check(k, "product int8");
  Random random(3);
  for (const int outputs : column_counts(k))
    for (const int inputs : WIDTHS) {
      const std::vector<float> w = numbers(random, size_t(outputs) * inputs), bias = numbers(random, outputs);
      const Packed m(k, clearhead::INT8, outputs, w, bias);
      Activations x(k, ROWS, inputs);
      fill_rows(random, x);
      x.quantise(k);
      Results all(m);
      all.multiply(k, m, x.input(), 0, ROWS);
      for (int c = 0; c < outputs; ++c) {
        const float* column = &w[size_t(c) * inputs];
        double peak = 0;
        for (int i = 0; i < inputs; ++i) peak = std::fmax(peak, std::fabs(column[i]));
        check.near(m.scale[c], peak / 127, peak * 1e-6, "scale of column", c);
        for (int r = 0; r < ROWS; ++r) {
          const reference::Sum sum = reference::dot(x.row(r), column, inputs);
          double low = 0, high = 0, allowed = 1e-5 * (sum.size + std::fabs(bias[c])) + 1e-37;
          for (int i = 0; i < inputs; ++i) {
            low = std::fmin(low, x.row(r)[i]);
            high = std::fmax(high, x.row(r)[i]);
          }
          const double half_x = 0.501 * (high - low) / 255, half_w = 0.501 * peak / 127;
          for (int i = 0; i < inputs; ++i)
            allowed += std::fabs(x.row(r)[i]) * half_w + std::fabs(column[i]) * half_x + half_w * half_x;
          const bool strange = !std::isfinite(sum.value);  // an infinite input has no scale: NaN
          check.near(all.at(r, c), strange ? NOT_A_NUMBER : sum.value + bias[c], allowed, "row, column", r, c);
        }
      }
      check_rows_alone(check, k, m, x, all);
    }
  return check.finish();
}

// A fingerprint of int8 results that no set may change by a bit: nothing in them depends on how a sum is rounded.
inline uint64_t int8_fingerprint(const Kernels& k) {
  Random random(7);
  const int outputs = 139, inputs = 259;
  const std::vector<float> w = numbers(random, size_t(outputs) * inputs);
  const Packed m(k, clearhead::INT8, outputs, w, std::vector<float>(outputs, 0.0f));
  Activations x(k, ROWS, inputs);
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < inputs; ++i) x.row(r)[i] = random.normal() * float(r + 1);
  x.quantise(k);
  Results all(m);
  all.multiply(k, m, x.input(), 0, ROWS);
  uint64_t digest = 14695981039346656037u;  // FNV-1a
  for (size_t i = 0; i < all.floats.size() * sizeof(float); ++i)
    digest = (digest ^ reinterpret_cast<const uint8_t*>(all.floats.get())[i]) * 1099511628211u;
  return digest;
}

// A column that holds a NaN or an infinity is not a number in int8, its neighbours are unharmed; a column of zeros
// gives its bias.
inline bool strange_weights(const Kernels& k) {
  Check check(k, "int8 weights that are zero or no numbers");
  Random random(4);
  for (const int inputs : {1, 5, 16, 70}) {
    const int outputs = k.panel + 3;
    std::vector<float> w = numbers(random, size_t(outputs) * inputs), bias = numbers(random, outputs);
    for (int i = 0; i < inputs; ++i) w[size_t(2) * inputs + i] = i % 2 ? 0.0f : -0.0f;
    w[random.below(inputs)] = NOT_A_NUMBER;
    w[size_t(outputs - 1) * inputs + random.below(inputs)] = -INFINITE;
    const Packed m(k, clearhead::INT8, outputs, w, bias);
    Activations x(k, ROWS, inputs);
    for (int r = 0; r < ROWS; ++r)
      for (int i = 0; i < inputs; ++i) x.row(r)[i] = random.normal();
    x.quantise(k);
    Results all(m);
    all.multiply(k, m, x.input(), 0, ROWS);
    for (int r = 0; r < ROWS; ++r)
      for (int c = 0; c < outputs; ++c) {
        const bool strange = c == 0 || c == outputs - 1;
        check.holds(std::isnan(all.at(r, c)) == strange, "column %d is %g", c, double(all.at(r, c)));
        if (c == 2) check.same(all.at(r, c), bias[c], "column of zeros", r, c);
      }
  }
  return check.finish();
}

inline bool unpacked(const Kernels& k) {
  Check check(k, "unpack_column");
  Random random(7);
  for (const int inputs : WIDTHS)
    for (const int outputs : column_counts(k)) {
      const std::vector<float> w = numbers(random, size_t(outputs) * inputs);
      const Packed m(k, clearhead::INT8, outputs, w, std::vector<float>(outputs));
      const Guarded<float> column(inputs);
      for (int c = 0; c < outputs; ++c) {
        k.unpack_column(m, c, column.get());
        const double step = m.scale[c];
        for (int i = 0; i < inputs; ++i) check.near(column[i], w[size_t(c) * inputs + i], 0.50001 * step, "weight", c, i);
      }
      check.holds(column.intact(), "written past its memory (%d inputs)", inputs);
    }
  return check.finish();
}

// Through a product with one input, which passes any number on as it is.
inline bool activations(const Kernels& k) {
  Check check(k, "activations");
  std::vector<float> w = {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-6f, -1e-6f, 80, 87, 88, 89, 100, -80, -87, -88, -89, -100,
                          1e4f, -1e4f, 1e15f, -1e15f, NOT_A_NUMBER, INFINITE};
  for (int i = -1500; i <= 1500; ++i) w.push_back(float(i) / 97);
  const int outputs = int(w.size());
  const Packed m(k, clearhead::FLOAT32, outputs, w, std::vector<float>(outputs, 0.0f));
  const Activations x(k, ROWS, 1);
  for (int r = 0; r < ROWS; ++r) x.row(r)[0] = 1;
  for (int32_t kind = clearhead::NO_ACTIVATION; kind <= clearhead::TANH; ++kind) {
    Results all(m);
    all.multiply(k, m, x.input(), 0, ROWS, false, kind);
    for (int r = 0; r < ROWS; ++r)
      for (int c = 0; c < outputs; ++c) {
        const double wanted = reference::activate(w[c], kind);
        if (kind == clearhead::NO_ACTIVATION || kind == clearhead::RELU)
          check.near(all.at(r, c), wanted, 0, "exact activation of column", kind, c);
        else
          check.near(all.at(r, c), wanted, 4e-7 * std::fmax(1, std::fabs(w[c])), "activation of column", kind, c);
      }
  }
  return check.finish();
}

// Each panel's largest score and its share of the softmax, and from them the logsumexp of a row.
inline bool peaks(const Kernels& k) {
  Check check(k, "peaks and log_sum");
  Random random(5);
  for (const int outputs : {1, k.panel - 1, k.panel, k.panel + 1, 3 * k.panel + 7, 40 * k.panel + 1})
    for (const int shift : {0, 1}) {  // rows at a cache line or not
      const int inputs = 6;
      const std::vector<float> w = numbers(random, size_t(outputs) * inputs), bias = numbers(random, outputs);
      const Packed m(k, clearhead::FLOAT32, outputs, w, bias, -INFINITE);
      const Activations x(k, ROWS, inputs);
      fill_rows(random, x);
      for (int i = 0; i < inputs; ++i) x.row(3)[i] = 300 * random.normal();
      for (const int r : {6, 7})
        for (int i = 0; i < inputs; ++i) x.row(r)[i] = float(i);
      Results plain(m);
      plain.multiply(k, m, x.input(), 0, ROWS);
      const int64_t stride = m.panels * k.panel + 16 + shift;
      Guarded<float> logits(ROWS * stride), found(size_t(ROWS) * m.panels * 2);
      const Output out{logits.get(), stride, clearhead::NO_ACTIVATION, false, found.get()};
      for (int p = 0; p < m.panels; ++p) k.product(m, p, x.input(), 0, ROWS, true, out);
      for (int r = 0; r < ROWS; ++r) {
        const float* row = logits.get() + r * stride;
        for (int c = 0; c < outputs; ++c) check.same(row[c], plain.at(r, c), "logit", r, c);
        for (int p = 0; p < m.panels && r != 5; ++p) {
          const float* pair = found.get() + (size_t(r) * m.panels + p) * 2;
          float top = -INFINITE;
          for (int c = 0; c < k.panel; ++c) top = std::fmax(top, row[p * k.panel + c]);
          double share = 0;
          for (int c = 0; c < k.panel; ++c) share += std::exp(double(row[p * k.panel + c]) - top);
          check.same(pair[0], top, "largest of row, panel", r, p);
          check.near(pair[1], share, 2e-6 * share, "share of row, panel", r, p);
        }
        const double wanted = reference::log_sum(row, outputs);
        const float got = k.log_sum(found.get() + size_t(r) * m.panels * 2, m.panels);
        check.near(got, wanted, 3e-6 + 2e-7 * std::fabs(wanted), "log_sum of row", r, outputs);
      }
      check.holds(logits.intact() && found.intact(), "written past its memory (%d outputs)", outputs);
    }
  return check.finish();
}

inline bool not_below(const Kernels& k) {
  Check check(k, "not_below");
  Random random(6);
  for (int trial = 0; trial < 300; ++trial) {
    const Guarded<float> values(k.panel);
    for (int c = 0; c < k.panel; ++c) values[c] = float(random.below(5) - 2);
    values[random.below(k.panel)] = trial % 3 == 0 ? NOT_A_NUMBER : trial % 3 == 1 ? -INFINITE : -0.0f;
    const float bar = trial % 7 == 0 ? -INFINITE : float(trial % 5 - 2);
    uint64_t wanted = 0;
    for (int c = 0; c < k.panel; ++c) wanted |= uint64_t(values[c] >= bar) << c;
    check.holds(k.not_below(values.get(), bar) == wanted, "bits for bar %g", double(bar));
  }
  return check.finish();
}

}  // namespace checking
