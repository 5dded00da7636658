// Which of the instruction sets that were compiled in this processor can run. The compiler names them in
// CLEARHEAD_SETS, best first: SET(avx2) SET(plain), say.
#pragma once

#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace clearhead {

#define SET(name) extern "C" const Kernels clearhead_kernels_##name;
CLEARHEAD_SETS
#undef SET

#define SET(name) &clearhead_kernels_##name,
const Kernels* const ALL_SETS[] = {CLEARHEAD_SETS};
#undef SET

#if defined(__x86_64__)
// What the processor has and the system keeps when it changes from one thread to another.
struct Abilities {
  bool avx2 = false, avx_vnni = false, avx512 = false, avx512_vnni = false;

  Abilities() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return;  // no xgetbv: no wide registers
    const bool fma = c >> 12 & 1, avx = c >> 28 & 1;
    unsigned low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!avx || !fma || (low & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = b >> 5 & 1;
    const bool all_of_512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
    avx512 = avx2 && all_of_512 && (low & 0xe6) == 0xe6;
    avx512_vnni = avx512 && (c >> 11 & 1);
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) avx_vnni = avx2 && (a >> 4 & 1);
  }
};

inline bool runs(const char* set) {
  static const Abilities have;
  if (!std::strcmp(set, "avx512_vnni")) return have.avx512_vnni;
  if (!std::strcmp(set, "avx512")) return have.avx512;
  if (!std::strcmp(set, "avx2_vnni")) return have.avx_vnni;
  if (!std::strcmp(set, "avx2")) return have.avx2;
  return !std::strcmp(set, "plain");
}
#elif defined(__aarch64__)
#if defined(__APPLE__)
inline bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value;
}
inline bool dotprod() { return true; }  // every Mac with an ARM processor has it, and macOS 11 no name for it
inline bool i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }
#elif defined(__linux__)
inline bool dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }
inline bool i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; }
#else
inline bool dotprod() { return false; }
inline bool i8mm() { return false; }
#endif

inline bool runs(const char* set) {
  if (!std::strcmp(set, "neon_i8mm")) return dotprod() && i8mm();
  if (!std::strcmp(set, "neon_dotprod")) return dotprod();
  return !std::strcmp(set, "neon");
}
#endif

// The table of a set that runs here, by name; without one, the best.
inline const Kernels* kernels_of(const char* name) {
  for (const Kernels* one : ALL_SETS)
    if (runs(one->name) && (!name || !*name || !std::strcmp(name, one->name))) return one;
  return nullptr;
}

}  // namespace clearhead
