// Where keys and values lie: one slot for each token, for all layers, in blocks that never move.
//
// A text under way is a list of slot numbers, one for each position. Texts of a beam share the slots of what they
// have in common, so reordering a beam copies small numbers only; a slot that no list holds any more is used again.
#pragma once

#include <algorithm>
#include <vector>

#include "memory.h"

namespace clearhead {

using Slots = std::vector<int32_t>;

class Store {
 public:
  Store(int layers, int keys, int values)
      : layers_(layers),
        keys_(keys),
        stride_(up_to(keys + values, 16) + 16),  // + a line: no cache aliasing
        block_(slots_of(size_t(layers) * stride_ * sizeof(float))) {}

  int32_t take() {
    if (free_.empty()) grow();
    const int32_t slot = free_.back();
    free_.pop_back();
    users_[slot] = 1;
    return slot;
  }

  void hold(const Slots& slots, int times) {
    for (int32_t slot : slots) users_[slot] += times;
  }

  void drop(const Slots& slots) {
    for (int32_t slot : slots)
      if (--users_[slot] == 0) free_.push_back(slot);
  }

  // The key of a token in one layer; its value follows at `value_offset`.
  float* at(int layer, int32_t slot) const {
    return blocks_[slot / block_].get() + (size_t(layer) * block_ + slot % block_) * stride_;
  }
  int value_offset() const { return keys_; }

  size_t bytes() const { return blocks_.size() * layers_ * block_ * stride_ * sizeof(float); }
  size_t in_use() const { return users_.size() - free_.size(); }

 private:
  // Slots of a block: so many that it gets huge pages, since attention reads from slot to slot.
  static int slots_of(size_t bytes) { return std::max(64, int((size_t(1) << 22) / std::max(bytes, size_t(1)))); }

  void grow() {
    const int32_t first = int32_t(users_.size());
    blocks_.emplace_back(size_t(layers_) * block_ * stride_);
    users_.resize(first + block_, 0);
    for (int32_t slot = first + block_ - 1; slot >= first; --slot) free_.push_back(slot);
  }

  int layers_, keys_, stride_, block_;
  std::vector<Buffer<float>> blocks_;
  std::vector<int32_t> users_, free_;
};

}  // namespace clearhead
