// Several steps of several beams in one call: every beam chooses, the engine writes what they chose, and again.
//
// Between two steps of a small model Python would take as long as a good part of the step, with all threads but one
// idle. What is found is the same, whoever counts the steps.
#pragma once

#include "beam.h"

namespace clearhead {

// A beam's scores before the first step, and what it is told. The Python side's struct has the same fields.
struct Strider {
  Beam* beam;
  const ScoreBuffer* buffer;
  int64_t begin;           // the first row there that is the beam's
  int64_t rows;            // how many there are; afterwards: how many it goes on with
  const double* divisors;  // what texts that end in the first step are divided by, in the second, …: most + 1
};

// Step until `most` are done, `enough` requests are decided, one of them by an error, or no row is left. Scores of
// the last step go to `buffer`, beam by beam. Returns how many steps were done, −1 where a choice makes no sense.
inline int64_t stride(Engine& engine, Strider* beams, int64_t count, int64_t most, int64_t enough, ScoreBuffer buffer) {
  std::vector<int64_t> parent, token;
  for (int64_t done = 0; done < most; ++done) {
    int64_t rows = 0, offset = 0, decided = 0;
    bool failed = false;
    for (Strider* one = beams; one < beams + count; ++one) {
      const size_t next = size_t(rows + one->beam->most_rows());
      if (parent.size() < next) {
        parent.resize(next);
        token.resize(next);
      }
      const ScoreBuffer& from = done ? buffer : *one->buffer;
      const int64_t begin = done ? offset : one->begin;
      const int64_t left = one->beam->advance(engine, from, begin, {one->divisors[done], one->divisors[done + 1]},
                                              parent.data() + rows, token.data() + rows);
      for (int64_t i = 0; i < left; ++i) parent[rows + i] += offset;
      offset += one->rows;
      one->rows = left;
      rows += left;
      decided += int64_t(one->beam->decided().size());
      failed = failed || one->beam->failed();
    }
    if (!engine.step(parent.data(), token.data(), rows, buffer)) return -1;
    if (!rows || failed || decided >= enough) return done + 1;
  }
  return most;
}

}  // namespace clearhead
