// Where keys and values lie: one slot for each token, for all layers, in blocks that never move.
//
// A text is a list of slot numbers, one for each position. Texts of a beam share the slots of what they have in common,
// so reordering a beam copies small numbers only; a slot that no list holds any more is used again. Only what makes a
// list longer may fail for want of memory, and then the list gives back what it has.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "memory.h"

namespace clearhead {

// Space for so many elements in all, with some to spare: growing one by one stays cheap.
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

  void hold(int32_t slot) { ++users_[slot]; }  // once more
  void drop(int32_t slot) {
    if (--users_[slot] == 0) free_.push_back(slot);  // there is space: see `grow`
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

// The slots of a text or a source, one for each position; held as long as the list lives.
class Slots {
 public:
  Slots() = default;
  explicit Slots(Store& store) : store_(&store) {}
  Slots(Slots&& other) noexcept { swap(other); }
  Slots& operator=(Slots&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Slots() {
    for (const int32_t slot : list_) store_->drop(slot);
  }

  // The same as another list, with space for a few more.
  void copy(const Slots& other) {
    list_.reserve(other.list_.size() + 32);
    list_ = other.list_;
    store_ = other.store_;
    for (const int32_t slot : list_) store_->hold(slot);
  }

  void extend(int64_t count) {
    grow_to(list_, list_.size() + size_t(count));
    while (count--) list_.push_back(store_->take());
  }

  void shorten() {
    store_->drop(list_.back());
    list_.pop_back();
  }

  void swap(Slots& other) noexcept {
    std::swap(store_, other.store_);
    list_.swap(other.list_);
  }

  bool empty() const { return list_.empty(); }
  int32_t size() const { return int32_t(list_.size()); }
  const int32_t* data() const { return list_.data(); }
  int32_t operator[](size_t i) const { return list_[i]; }

 private:
  Store* store_ = nullptr;
  std::vector<int32_t> list_;
};

}  // namespace clearhead
