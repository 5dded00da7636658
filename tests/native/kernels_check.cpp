// Every function of every instruction set that this processor runs, against plain references in double precision.
//
// Linked with one kernels.cpp for each set, as the engine is (CLEARHEAD_SETS names them); `building.py` does it.
// Prints one line for each set and function, and one for each set that this processor does not run; names given as
// arguments must be the sets that run, all of them. Exit status 0: everything was right.
#include "check_products.h"
#include "check_rows.h"
#include "processor.h"

using clearhead::Kernels;

namespace {

bool passes(const Kernels& k) {
  using namespace checking;
  bool right = true;
  right &= float_products(k, clearhead::FLOAT32);
  right &= float_products(k, clearhead::BFLOAT16);
  right &= int8_sums(k);
  right &= int8_products(k);
  right &= strange_weights(k);
  right &= unpacked(k);
  right &= activations(k);
  right &= peaks(k);
  right &= not_below(k);
  right &= normalise(k);
  right &= quantise(k);
  right &= gate(k);
  right &= rotate(k);
  right &= attend(k);
  std::printf("%s int8 fingerprint: %016llx\n", k.name, static_cast<unsigned long long>(int8_fingerprint(k)));
  return right;
}

}  // namespace

int main(int count, char** names) {
  bool right = true;
  int ran = 0;
  for (const Kernels* set : clearhead::ALL_SETS) {
    bool named = count < 2;
    for (int i = 1; i < count; ++i) named |= !std::strcmp(names[i], set->name);
    if (!clearhead::runs(set->name)) {
      std::printf("%s: this processor does not run it\n", set->name);
    } else {
      ++ran;
      if (!named) std::printf("%s: this processor runs it, against expectation\n", set->name);
      right &= passes(*set) && named;
    }
    std::fflush(stdout);
  }
  if (count > 1 && ran != count - 1) std::printf("%d sets ran instead of %d\n", ran, count - 1);
  return right && ran > 0 && (count < 2 || ran == count - 1) ? 0 : 1;
}
