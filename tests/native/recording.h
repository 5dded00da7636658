// A recording of calls of the engine's functions: how it is written down, and how it is read.
//
// Little-endian: the number of records of weights (matrices and models), these, and the calls. A record is its kind
// (below) as an int64 and its fields. A number is an int64, a real a double, a list an int64 count and its values;
// an empty list stands for nullptr. Matrices, models, engines, beams and the scores of admit and step are counted
// from 0, and later records name them so. `recording.py` writes it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace recording {

enum Record : int64_t {
  MATRIX,   // kind, outputs, inputs; real beyond; weights, bias float32
  MODEL,    // numbers int32, reals float32; source table, target table; 4 norms; 2 stacks; output, source and target rows
            //   norm: weight, bias; stack: number of layers, of each a list of 7 matrices and 3 norms
            //   matrices are lists of int32, −1: none
  ENGINE,   // model, threads
  TABLES,   // engine, capacity; 6 tables
  ADMIT,    // engine, start; lengths, ids int64; expected scores
  STEP,     // engine; parents, tokens int64; expected scores
            //   expected scores: rows, attention stride; real largest and mean difference; logp, hidden, attention
  TOP,      // engine, scores, begin, end, count; real difference; values float32, ids int64
  BEAM,     // vocabulary; dials int32, kinds uint8, limits int64, last double
  ADVANCE,  // beam, engine, scores, begin; real now, next; parents, tokens int64
  STRIDE,   // engine, most, enough, most rows, beams: each beam, scores, begin, rows and a list of double divisors;
            //   steps; rows of each beam; expected scores
  ANSWER,   // beam, which; number, broken, dead; texts: score double, willing; tokens int32, logps float32
  FORGET,   // beam
  TAKE,     // engine, begin, end: the taken rows are counted from 0
  JOIN,     // engine, taken rows
  DROP,     // engine, taken rows
  SPLIT,    // beam; layout int64; first, count of requests: a new beam
};
const char* const NAMES[] = {"matrix", "model", "engine",  "tables", "admit",  "step",
                             "top",    "beam",  "advance", "stride", "answer", "forget",
                             "take",   "join",  "drop",    "split"};

inline const char* name_of(int64_t kind) { return kind >= MATRIX && kind <= SPLIT ? NAMES[kind] : "unknown"; }

struct Wrong {
  std::string what;
};

class Reader {
 public:
  explicit Reader(const std::vector<char>& data) : data_(data) {}
  bool more() const { return at_ < data_.size(); }
  int64_t number() { return one<int64_t>(); }
  double real() { return one<double>(); }

  template <class T>
  std::vector<T> list() {
    const int64_t count = number();
    if (count < 0 || size_t(count) > (data_.size() - at_) / sizeof(T)) throw Wrong{"the recording ends too early"};
    std::vector<T> found(count);
    if (count) std::memcpy(found.data(), data_.data() + at_, count * sizeof(T));
    at_ += count * sizeof(T);
    found.shrink_to_fit();
    return found;
  }

 private:
  template <class T>
  T one() {
    if (data_.size() - at_ < sizeof(T)) throw Wrong{"the recording ends too early"};
    T value;
    std::memcpy(&value, data_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  const std::vector<char>& data_;
  size_t at_ = 0;
};

template <class T>
const T* pointer(const std::vector<T>& list) {
  return list.empty() ? nullptr : list.data();
}

inline void demand(bool condition, const char* what) {
  if (!condition) throw Wrong{what};
}

// Differences between recorded numbers and ours.
struct Differences {
  double largest = 0, sum = 0, count = 0;

  void add(const std::vector<float>& wanted, const float* found, double bound, const char* what) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == found[i]) continue;  // infinities too
      const double difference = std::abs(double(wanted[i]) - double(found[i]));
      if (!(difference <= bound))
        throw Wrong{std::string(what) + " " + std::to_string(i) + " is " + std::to_string(found[i]) + ", recorded as " +
                    std::to_string(wanted[i])};
      largest = std::max(largest, difference);
      sum += difference;
    }
    count += double(wanted.size());
  }
  double mean() const { return count ? sum / count : 0; }
};

}  // namespace recording
