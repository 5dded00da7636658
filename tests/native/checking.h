// What the kernels are checked with: memory that notices being used past its end, numbers to try, and the count
// of what was compared.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels.h"

namespace checking {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();
constexpr double ROUNDING = 1.0 / (1 << 24);  // of one float operation

#if defined(__SANITIZE_ADDRESS__)
constexpr bool SANITIZED = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool SANITIZED = true;
#else
constexpr bool SANITIZED = false;
#endif
#else
constexpr bool SANITIZED = false;
#endif

// Exactly `count` elements that begin at a cache line. The page behind that line cannot be read, and the rest of the
// line must stay as it is; under a sanitizer nothing at all lies behind them.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count, T value = T{}) : count_(count) {
    if (SANITIZED) {
      void* found = nullptr;
      if (posix_memalign(&found, LINE, bytes() ? bytes() : 1)) std::abort();
      data_ = static_cast<T*>(found);
    } else {
      const size_t page = size_t(sysconf(_SC_PAGESIZE));
      pages_ = (lines() + page - 1) / page * page;
      void* found = mmap(nullptr, pages_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (found == MAP_FAILED || mprotect(static_cast<char*>(found) + pages_, page, PROT_NONE)) std::abort();
      data_ = reinterpret_cast<T*>(static_cast<char*>(found) + pages_ - lines());
      std::memset(end(), MARK, lines() - bytes());
    }
    for (size_t i = 0; i < count; ++i) data_[i] = value;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() {
    if (SANITIZED)
      std::free(data_);
    else
      munmap(reinterpret_cast<char*>(data_) + lines() - pages_, pages_ + size_t(sysconf(_SC_PAGESIZE)));
  }

  bool intact() const {
    for (size_t i = 0; !SANITIZED && i < lines() - bytes(); ++i)
      if (end()[i] != MARK) return false;
    return true;
  }
  T* get() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return count_; }

 private:
  static constexpr size_t LINE = 64;
  static constexpr unsigned char MARK = 0xA5;
  size_t bytes() const { return count_ * sizeof(T); }
  size_t lines() const { return (bytes() + LINE - 1) / LINE * LINE; }
  unsigned char* end() const { return reinterpret_cast<unsigned char*>(data_) + bytes(); }
  size_t count_, pages_ = 0;
  T* data_;
};

// The same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state_ >> 33) ^ uint32_t(state_ >> 17);
  }
  int below(int count) { return int(bits() % uint32_t(count)); }
  // Roughly normal: the sum of four uniform numbers.
  float normal() {
    double sum = -2;
    for (int i = 0; i < 4; ++i) sum += bits() / 4294967296.0;
    return float(sum * 1.7320508);
  }

 private:
  uint64_t state_;
};

// One function of one set: what was compared, how near the worst came to what is allowed, the first that was wrong.
class Check {
 public:
  Check(const clearhead::Kernels& kernels, const char* function) : set_(kernels.name), function_(function) {}

  __attribute__((format(printf, 3, 4))) void holds(bool right, const char* where, ...) {
    ++compared_;
    if (right) return;
    if (wrong_++ == 0) {
      va_list arguments;
      va_start(arguments, where);
      std::vsnprintf(first_, sizeof(first_), where, arguments);
      va_end(arguments);
    }
  }

  // A number against its reference: infinities and NaN in the same places, the others to within `allowed`.
  void near(float got, double wanted, double allowed, const char* what, int i = 0, int j = 0) {
    bool right;
    if (std::isnan(wanted) || std::isnan(got)) {
      right = std::isnan(wanted) && std::isnan(got);
    } else if (std::isinf(wanted) || std::isinf(got)) {
      right = double(got) == wanted;
    } else {
      const double error = std::fabs(got - wanted);
      right = error <= allowed;
      if (right && allowed > 0 && error / allowed > worst_) worst_ = error / allowed;
    }
    holds(right, "%s (%d, %d): %.9g instead of %.9g, allowed %.3g", what, i, j, double(got), wanted, allowed);
  }

  // Bit for bit; one NaN is as good as another.
  void same(float got, float wanted, const char* what, int i = 0, int j = 0) {
    const bool right = std::memcmp(&got, &wanted, sizeof(got)) == 0 || (got != got && wanted != wanted);
    holds(right, "%s (%d, %d): %.9g instead of exactly %.9g", what, i, j, double(got), double(wanted));
  }

  // Prints the line; false if anything was wrong.
  bool finish() const {
    if (wrong_)
      std::printf("%s %s: WRONG, %ld of %ld; first %s\n", set_, function_, wrong_, compared_, first_);
    else
      std::printf("%s %s: %ld compared, at most %.2f of the allowed error\n", set_, function_, compared_, worst_);
    return wrong_ == 0;
  }

 private:
  const char *set_, *function_;
  long compared_ = 0, wrong_ = 0;
  double worst_ = 0;
  char first_[400] = "";
};

}  // namespace checking
