// Four inputs at a time, unsigned bytes times signed ones: the dot-product instruction of VNNI.
//
// With CLEARHEAD_EMULATE the same is computed step by step, for tests on processors that lack the instruction.
#pragma once

#include "tile.h"

namespace clearhead {
namespace {

constexpr int TOGETHER = 4, QUANTISED_BYTES = 1;

inline int32_t put_quantised(uint8_t* to, int at, Ints bytes, int32_t zero) {
  const Bytes narrow = __builtin_convertvector(bytes, Bytes);
  std::memcpy(to + at, &narrow, sizeof(narrow));
  return zero;
}

__attribute__((always_inline)) inline Ints load_weights(const int8_t* from) { return load<Ints>(from); }

__attribute__((always_inline)) inline Ints load_activations(const uint8_t* from) { return all(load<int32_t>(from)); }

// Each lane of c += four products of bytes: unsigned a, signed b.
__attribute__((always_inline)) inline void multiply_add(Ints& c, Ints a, Ints b) {
#if defined(__AVX512VNNI__) && !defined(CLEARHEAD_EMULATE)
  asm("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
#elif defined(__AVXVNNI__) && !defined(CLEARHEAD_EMULATE)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
#else
  for (int shift = 0; shift < 32; shift += 8) c += ((a >> shift) & 255) * ((b << (24 - shift)) >> 24);
#endif
}

}  // namespace
}  // namespace clearhead
