// A packed weight matrix and the memory it lies in.
#pragma once

#include "kernels.h"
#include "memory.h"

namespace clearhead {

struct PackedMatrix : Matrix {
  const Kernels* kernels;
  Buffer<char> own_weights;
  Buffer<float> own_scale, own_bias;
  Buffer<int32_t> own_sums;

  // Room for a matrix; its panels are filled by `pack_panel`, in any order and by any thread.
  // `beyond` is the bias of columns that do not exist: −∞ keeps them out of a softmax.
  PackedMatrix(const Kernels* set, int outputs_, int inputs_, Kind kind_, const float* bias_, float beyond)
      : Matrix{outputs_, inputs_, (outputs_ + set->panel - 1) / set->panel, kind_,
               set->panel_bytes(kind_, inputs_), nullptr, nullptr, nullptr, nullptr},
        kernels(set) {
    const size_t padded = size_t(panels) * set->panel;
    own_bias.reserve(padded);
    for (size_t c = 0; c < padded; ++c) own_bias[c] = int(c) >= outputs ? beyond : bias_ ? bias_[c] : 0.0f;
    own_weights.reserve(size());
    if (kind == INT8) {
      own_scale.reserve(padded);
      own_sums.reserve(padded);
    }
    weights = own_weights.get();
    scale = own_scale.get();
    sums = own_sums.get();
    bias = own_bias.get();
  }

  size_t size() const { return panels * panel_bytes; }
};

}  // namespace clearhead
