// The shape of a tile: so many rows times one panel of columns, held in registers while the inputs run by.
#pragma once

#include "vectors.h"

namespace clearhead {
namespace {

#if defined(__AVX512F__)
constexpr int VECTORS = 4, ROWS = 6;  // a tile is 6 × 64: 24 of the 32 registers hold sums
#elif defined(__AVX__)
constexpr int VECTORS = 2, ROWS = 6;  // 6 × 16: 12 of 16 registers
#elif defined(__aarch64__)
constexpr int VECTORS = 4, ROWS = 6;  // 6 × 16: 24 of 32 registers
#else
constexpr int VECTORS = 4, ROWS = 4;
#endif
constexpr int PANEL = VECTORS * LANES;

#define CLEARHEAD_UNROLL _Pragma("GCC unroll 8")

// Memory that will be wanted soon, asked for `lines` cache lines at each round of the loop over inputs.
struct Ahead {
  const char* from;
  int lines;

  __attribute__((always_inline)) void fetch() {
    for (int i = 0; i < lines; ++i, from += 64) __builtin_prefetch(from);
  }
};

}  // namespace
}  // namespace clearhead
