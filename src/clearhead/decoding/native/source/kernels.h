// What the engine asks of a processor: one table of functions for each instruction set.
//
// `kernels.cpp` is compiled once for each set and gives one table; the engine, compiled once for what every
// processor of the architecture can do, works through the table that fits the machine. What is shared between the
// two is plain data: a function compiled here for a newer processor must never be the one that an older one calls,
// so this file holds no code and no templates of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace clearhead {

enum Kind : int32_t { FLOAT32, BFLOAT16, INT8 };

// In the order of the Python side's list of activations.
enum Activation : int32_t { NO_ACTIVATION, RELU, GELU, GELU_TANH, QUICK_GELU, SILU, TANH };

struct Norm {
  const float* weight;  // nullptr: there is no norm
  const float* bias;    // nullptr: none
};

// A packed weight matrix: what its panels hold is the business of the set that packed it (pack.h).
struct Matrix {
  int32_t outputs, inputs, panels;
  Kind kind;
  size_t panel_bytes;
  char* weights;  // (panels, panel_bytes)
  float* scale;   // (padded outputs) int8: w ≈ scale · q
  int32_t* sums;  // (padded outputs) int8: Σ q of each column
  float* bias;    // (padded outputs)
};

// Rows of activations; int8 products read `bytes` (x ≈ scale · (byte − zero)), the others `floats`.
struct Input {
  const float* floats;
  int32_t stride;
  const uint8_t* bytes;
  int32_t byte_stride;
  const float* scale;
  const int32_t* zero;
};

// What becomes of the sums.
struct Output {
  float* floats;
  int64_t stride;
  int32_t activation;
  bool add;      // to what stands there: the residual connection
  float* peaks;  // (rows, panels, 2): largest number of the panel, and Σ e^(x − largest); nullptr: not wanted
};

// What all heads of all rows have in common.
struct AttentionShape {
  int32_t heads, groups, key_dim, value_dim;
  float scale, softcap;  // softcap 0: none
};

// The keys and values one row looks at, and what positions add to its scores.
struct Sight {
  const float* const* keys;  // of each token, all groups
  int32_t count;
  int32_t value_offset;      // from a token's keys to its values
  const float* bias;         // of head 0, for key 0; nullptr: none
  int64_t bias_stride;       // from head to head
};

constexpr int MOST_LANES = 16;  // of any set's vectors: buffers have room for whole vectors

struct Kernels {
  const char* name;
  int32_t panel;  // columns of a panel, at most 64
  int32_t rows;   // rows of the largest tile

  size_t (*panel_bytes)(Kind kind, int inputs);
  int (*quantised_bytes)(int columns);  // of a row of activations, as `quantise` writes it
  void (*pack_panel)(const Matrix& m, int panel, const float* weights);  // weights (outputs, inputs), row by row
  void (*unpack_column)(const Matrix& m, int column, float* to);  // int8: the weights of one output, as they are now

  // Rows begin..end−1 times one panel; `more`: the calling thread goes on with the next panel.
  void (*product)(const Matrix& m, int panel, const Input& x, int begin, int end, bool more, const Output& out);

  void (*normalise)(const Norm& norm, bool rms, float eps, const float* x, float* to, int n);
  void (*quantise)(const float* x, int n, uint8_t* to, float* scale, int32_t* zero);
  void (*gate)(float* row, int n, int32_t activation);  // first half of a row: activation(itself) · second half
  void (*rotate)(const float* x, float* to, int size, const float* cosine, const float* sine, bool halves);

  // One row's heads of one key/value group. `scores` is scratch with room for whole vectors; `shares`, where
  // wanted, gathers the mean of all heads' weights.
  void (*attend)(const AttentionShape& shape, int group, const float* query, const Sight& sight, float* scores,
                 float* to, float* shares);

  float (*log_sum)(const float* peaks, int panels);        // log Σ e^x of a row, from its panels' shares
  uint64_t (*not_below)(const float* values, float bar);   // one bit for each number of a panel that is at least `bar`
};

}  // namespace clearhead
