// A packed weight matrix: a view on memory that belongs to somebody else, private or shared with other processes.
#pragma once

#include "kernels.h"
#include "memory.h"

namespace clearhead {

// Its memory, which begins at a cache line as each part of it does: weights, bias, and for int8 scale and sums.
struct PackedMatrix : Matrix {
  const Kernels* kernels;

  PackedMatrix(const Kernels* set, int outputs_, int inputs_, Kind kind_, char* memory)
      : Matrix{outputs_, inputs_, (outputs_ + set->panel - 1) / set->panel, kind_, set->panel_bytes(kind_, inputs_),
               memory, nullptr, nullptr, nullptr},
        kernels(set) {
    char* next = memory + lines(size());
    bias = reinterpret_cast<float*>(next);
    if (kind != INT8) return;
    scale = reinterpret_cast<float*>(next + lines(column_bytes()));
    sums = reinterpret_cast<int32_t*>(next + 2 * lines(column_bytes()));
  }

  // Bytes of all of it.
  static size_t bytes_for(const Kernels* set, int outputs, int inputs, Kind kind) {
    const size_t panels = (outputs + set->panel - 1) / set->panel;
    return lines(panels * set->panel_bytes(kind, inputs)) + (kind == INT8 ? 3 : 1) * lines(panels * set->panel * 4);
  }

  size_t size() const { return panels * panel_bytes; }  // bytes of the weights

  // `beyond` is the bias of columns that do not exist: −∞ keeps them out of a softmax.
  void set_bias(const float* from, float beyond) {
    for (int c = 0; c < panels * kernels->panel; ++c) bias[c] = c >= outputs ? beyond : from ? from[c] : 0.0f;
  }

  // The panels from `first` on as a matrix of their own.
  Matrix from_panel(int first) const {
    const int column = first * kernels->panel;
    Matrix part = *this;
    part.outputs -= column;
    part.panels -= first;
    part.weights += first * panel_bytes;
    part.bias += column;
    if (kind == INT8) {
      part.scale += column;
      part.sums += column;
    }
    return part;
  }

 private:
  static size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
  size_t column_bytes() const { return size_t(panels) * kernels->panel * 4; }  // a number for each column
};

}  // namespace clearhead
