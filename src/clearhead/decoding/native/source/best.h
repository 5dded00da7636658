// The best few tokens of a row of scores.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "kernels.h"

namespace clearhead {

struct Candidate {
  float value;
  int32_t id;
  bool operator<(const Candidate& other) const {  // best first, equals in order of their ids
    return value > other.value || (value == other.value && id < other.id);
  }
};

// A row's scores over the vocabulary, as a pass leaves them.
struct Scored {
  const float* logits;
  const float* peaks;  // (panels, 2): the largest number of each panel, and its share of the softmax
  float norm;          // logsumexp; not a number where any score is not
  int vocabulary, panels;
  const Kernels* kernels;
};

// A short list of what is best so far, in order. Of equals, what came first stays first.
class ShortList {
 public:
  static constexpr int MOST = 32;

  explicit ShortList(int count) : count_(count) {}

  void offer(float value, int32_t id) {
    if (size_ == count_ && !(value > found_[size_ - 1].value)) return;
    int at = size_ < count_ ? size_++ : size_ - 1;
    for (; at > 0 && value > found_[at - 1].value; --at) found_[at] = found_[at - 1];
    found_[at] = {value, id};
  }

  // What a newcomer must reach; it may be equal while there is room.
  float bar() const {
    return size_ < count_ ? -std::numeric_limits<float>::infinity() : found_[size_ - 1].value;
  }
  const Candidate& operator[](int i) const { return found_[i]; }

 private:
  int count_, size_ = 0;
  Candidate found_[MOST];
};

// `count` panels have a number at least as large as the count-th largest peak: what is below cannot be among the
// best `count`. So most panels are not looked at.
inline float least_peak(const Scored& row, int count) {
  if (count >= row.panels) return -std::numeric_limits<float>::infinity();
  std::vector<float> highs(row.panels);
  for (int p = 0; p < row.panels; ++p) highs[p] = row.peaks[2 * p];
  std::nth_element(highs.begin(), highs.begin() + count - 1, highs.end(), std::greater<float>());
  return highs[count - 1];
}

// look(value, id) for every number that is not below `bar`, which may rise meanwhile.
template <class Look>
inline void each_not_below(const Scored& row, const float& bar, Look look) {
  for (int p = 0; p < row.panels; ++p) {
    if (row.peaks[2 * p] < bar) continue;
    const int first = p * row.kernels->panel;  // rows are as long as whole panels
    for (uint64_t hits = row.kernels->not_below(row.logits + first, bar); hits; hits &= hits - 1) {
      const int id = first + __builtin_ctzll(hits);
      if (id < row.vocabulary) look(row.logits[id], id);
    }
  }
}

inline void best_few(const Scored& row, int count, float* values, int64_t* ids) {
  ShortList highs(count), found(count);
  for (int p = 0; p < row.panels; ++p) highs.offer(row.peaks[2 * p], p);
  float bar = highs.bar();
  each_not_below(row, bar, [&](float value, int id) {
    found.offer(value, id);
    bar = std::max(bar, found.bar());
  });
  for (int i = 0; i < count; ++i) {
    values[i] = found[i].value - row.norm;
    ids[i] = found[i].id;
  }
}

inline void best_many(const Scored& row, int count, float* values, int64_t* ids) {
  std::vector<Candidate> found;
  each_not_below(row, least_peak(row, count), [&](float value, int id) { found.push_back({value, id}); });
  std::partial_sort(found.begin(), found.begin() + count, found.end());
  for (int i = 0; i < count; ++i) {
    values[i] = found[i].value - row.norm;
    ids[i] = found[i].id;
  }
}

// The best `count` tokens of a row, best first, with their log-probabilities.
inline void best(const Scored& row, int count, float* values, int64_t* ids) {
  if (row.norm != row.norm) {  // some score is not a number: then none of them is one any more
    for (int i = 0; i < count; ++i) {
      values[i] = row.norm;
      ids[i] = i;
    }
  } else if (count <= ShortList::MOST) {
    best_few(row, count, values, ids);
  } else {
    best_many(row, count, values, ids);
  }
}

}  // namespace clearhead
