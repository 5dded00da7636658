// Where keys and values lie: one slot for each token, for all layers, in blocks that never move.
//
// A text under way is a list of slot numbers, one for each position. Texts of a beam share the slots of what they
// have in common, so reordering a beam copies small numbers only; a slot that no list holds any more is used again.
// Only `take` may fail for want of memory, and then it changes nothing.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "memory.h"

namespace clearhead {

using Slots = std::vector<int32_t>;

// ScoreBuffer for so many elements in all, with some to spare: growing one by one stays cheap.
template <class T>
void grow_to(std::vector<T>& list, size_t count) {
  if (list.capacity() < count) list.reserve(count + count / 2);
}

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

  // The first `count` slots of a list are in another one as well.
  void hold(const Slots& slots, size_t count) {
    for (size_t i = 0; i < count; ++i) ++users_[slots[i]];
  }

  void drop(int32_t slot) {
    if (--users_[slot] == 0) free_.push_back(slot);  // there is room: see `grow`
  }

  void drop(const Slots& slots) {
    for (int32_t slot : slots) drop(slot);
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
    if (users_.size() > size_t(std::numeric_limits<int32_t>::max() - block_)) throw std::bad_alloc();
    const int32_t first = int32_t(users_.size());
    grow_to(users_, first + block_);
    grow_to(free_, first + block_);  // for every slot, so that giving one back needs no memory
    blocks_.emplace_back(size_t(layers_) * block_ * stride_);
    users_.resize(first + block_, 0);
    for (int32_t slot = first + block_ - 1; slot >= first; --slot) free_.push_back(slot);
  }

  int layers_, keys_, stride_, block_;
  std::vector<Buffer<float>> blocks_;
  std::vector<int32_t> users_, free_;
};

}  // namespace clearhead
