// One instruction set's table; compiled once for each, with CLEARHEAD_SET as its name.
#include "parts.h"
#include "product.h"

namespace clearhead {
namespace {

inline uint64_t panel_not_below(const float* values, float bar) {
  uint64_t bits = 0;
  for (int v = 0; v < VECTORS; ++v) bits |= uint64_t(not_below(load(values + v * LANES), bar)) << (v * LANES);
  return bits;
}

}  // namespace

#define CLEARHEAD_JOIN(a, b) a##b
#define CLEARHEAD_TABLE(set) CLEARHEAD_JOIN(clearhead_kernels_, set)
#define CLEARHEAD_TEXT(text) #text
#define CLEARHEAD_NAME(set) CLEARHEAD_TEXT(set)

extern "C" {
extern const Kernels CLEARHEAD_TABLE(CLEARHEAD_SET);
const Kernels CLEARHEAD_TABLE(CLEARHEAD_SET) = {
    CLEARHEAD_NAME(CLEARHEAD_SET), PANEL,  ROWS,   panel_bytes, quantised_bytes, pack_panel, unpack_column, product,
    normalise,                     quantise, gate, rotate,      attend,          log_sum,        panel_not_below};
}

}  // namespace clearhead
