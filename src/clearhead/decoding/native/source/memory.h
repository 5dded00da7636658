// Memory for weights, activations, keys and values.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>

#include <unistd.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace clearhead {

// Numbers from a file; those that are not there any more are no numbers, which is noticed.
inline void read_numbers(int file, int64_t offset, float* to, int count) {
  char* at = reinterpret_cast<char*>(to);
  size_t left = size_t(count) * sizeof(float);
  while (left) {
    const ssize_t got = pread(file, at, left, offset);
    if (got <= 0) {
      for (int i = 0; i < count; ++i) to[i] = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    at += got;
    offset += got;
    left -= size_t(got);
  }
}

inline int up_to(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Memory that begins at a cache line; large pieces ask for huge pages, which spares the page table walks that
// otherwise cost much when a step reads every weight once.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t count) { reserve(count); }

  // Space for `count` elements; what it held is lost when it has to grow.
  void reserve(size_t count) {
    if (count <= capacity_) return;
    data_.reset();
    capacity_ = 0;
    const size_t bytes = (count + 64) * sizeof(T), huge = size_t(1) << 21;
    const size_t step = bytes >= 2 * huge ? huge : 64;
    void* found = std::aligned_alloc(step, (bytes + step - 1) / step * step);
    if (!found) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (step == huge) madvise(found, (bytes + step - 1) / step * step, MADV_HUGEPAGE);
#endif
    data_.reset(static_cast<T*>(found));
    capacity_ = count;
  }

  T* get() const { return data_.get(); }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t capacity_ = 0;
};

}  // namespace clearhead
