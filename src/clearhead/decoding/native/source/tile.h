// The shape of a tile: so many rows times one panel of columns, or as much of it as registers hold while the inputs
// run by.
#pragma once

#include "vectors.h"

namespace clearhead {
namespace {

// A sum waits for the one before, so one or two rows take a panel so wide that the units are busy meanwhile; more
// rows than WHOLE take half of it at a time.
#if defined(__AVX512F__)
constexpr int VECTORS = 4, ROWS = 6, WHOLE = 6;  // 6 × 64: 24 of the 32 registers hold sums
#elif defined(__AVX__)
constexpr int VECTORS = 4, ROWS = 6, WHOLE = 2;  // 6 × 16 or 2 × 32: 12 or 8 of 16 registers
#elif defined(__aarch64__)
constexpr int VECTORS = 8, ROWS = 6, WHOLE = 2;  // 6 × 16 or 2 × 32: 24 or 16 of 32 registers
#else
constexpr int VECTORS = 4, ROWS = 6, WHOLE = 2;  // 6 × 8 or 2 × 16: 12 or 8 of 16 registers
#endif
constexpr int PANEL = VECTORS * LANES;

// Vectors of columns that a tile of so many rows sums up at once.
constexpr int span(int rows) { return rows <= WHOLE ? VECTORS : VECTORS / 2; }

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
