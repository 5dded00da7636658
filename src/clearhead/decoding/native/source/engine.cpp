// The engine's door: plain C functions, called from Python with pointers into tensors.
//
// What can fail returns 1 for done, 0 where memory ran out, −1 where it was given what makes no sense.
#include "engine.h"

#include <algorithm>
#include <cstdio>

using namespace clearhead;

namespace {

struct Candidate {
  float value;
  int32_t id;
  bool operator<(const Candidate& other) const {  // best first, equals in order of their ids
    return value > other.value || (value == other.value && id < other.id);
  }
};

// The best `count` of one row. Only panels whose largest number may be among them are looked at.
void best(const float* logits, const float* peaks, float norm, int vocabulary, int panels, int count, float* values,
          int64_t* ids) {
  std::vector<float> highs(panels);
  for (int p = 0; p < panels; ++p) highs[p] = peaks[2 * p];
  float bar = -std::numeric_limits<float>::infinity();
  if (count == 1) {
    bar = *std::max_element(highs.begin(), highs.end());
  } else if (count < panels) {
    std::vector<float> order(highs);
    std::nth_element(order.begin(), order.begin() + count - 1, order.end(), std::greater<float>());
    bar = order[count - 1];
  }
  std::vector<Candidate> found;
  for (int p = 0; p < panels; ++p) {
    if (highs[p] < bar) continue;
    const int end = std::min(vocabulary, (p + 1) * PANEL);
    for (int id = p * PANEL; id < end; ++id)
      if (!(logits[id] < bar)) found.push_back({logits[id], id});
  }
  // Numbers that are none compare with nothing: they are put first, where they are noticed.
  auto sane = std::partition(found.begin(), found.end(), [](const Candidate& c) { return c.value != c.value; });
  const int64_t odd = std::min<int64_t>(sane - found.begin(), count);
  std::partial_sort(sane, sane + std::min<int64_t>(count - odd, found.end() - sane), found.end());
  for (int i = 0; i < count; ++i) {
    const Candidate& c = found[i < odd ? i : (sane - found.begin()) + (i - odd)];
    values[i] = c.value - norm;
    ids[i] = c.id;
  }
}

}  // namespace

extern "C" {

int64_t clearhead_panel() { return PANEL; }

// What the kernels were compiled for.
const char* clearhead_kernels() {
#if defined(__AVX512VNNI__)
  return "AVX-512 with VNNI";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "plain";
#endif
}

Matrix* clearhead_matrix(const float* weights, const float* bias, int64_t outputs, int64_t inputs, int32_t kind,
                         float beyond, int32_t threads) {
  try {
    auto matrix = std::make_unique<Matrix>();
    lay_out(*matrix, int(outputs), int(inputs), Kind(kind), bias, beyond);
    Team team(std::max(1, std::min<int>(threads, matrix->panels / 4)));
    team.run([&](int) { team.share(matrix->panels, [&](int panel) { pack_panel(*matrix, panel, weights); }); });
    return matrix.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void clearhead_matrix_free(Matrix* matrix) { delete matrix; }
int64_t clearhead_matrix_bytes(const Matrix* matrix) { return int64_t(matrix->size()); }

Engine* clearhead_engine(const Model* model, int32_t threads) {
  try {
    return new Engine(*model, threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void clearhead_engine_free(Engine* engine) { delete engine; }
void clearhead_tables(Engine* engine, const Tables* tables) { engine->set_tables(*tables); }
int64_t clearhead_longest(const Engine* engine) { return engine->longest(); }
int64_t clearhead_longest_source(const Engine* engine) { return engine->longest_source(); }
int64_t clearhead_slots(const Engine* engine) { return engine->slots_in_use(); }
int64_t clearhead_bytes(const Engine* engine) { return engine->bytes(); }

int32_t clearhead_admit(Engine* engine, const int64_t* ids, const int64_t* lengths, int64_t count, int32_t start,
                        const Room* room) {
  try {
    engine->admit(ids, lengths, count, start, *room);
    return 1;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

int32_t clearhead_step(Engine* engine, const int64_t* parent, const int64_t* token, int64_t rows, const Room* room) {
  try {
    return engine->step(parent, token, rows, *room) ? 1 : -1;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

// The best `count` of rows begin..end−1: values (rows, count) as log-probabilities, ids (rows, count).
void clearhead_top(Engine* engine, const Room* room, int64_t begin, int64_t end, int64_t count, float* values,
                   int64_t* ids) {
  const int panels = engine->model().output->panels, vocabulary = engine->model().vocabulary;
  Team& team = engine->team();
  auto row = [&](int64_t i) {
    const int64_t r = begin + i;
    best(room->logits + r * room->stride, room->peaks + r * panels * 2, room->norms[r], vocabulary, panels, int(count),
         values + i * count, ids + i * count);
  };
  if (end - begin < 16)  // not worth waking anybody
    for (int64_t i = 0; i < end - begin; ++i) row(i);
  else
    team.run([&](int) { team.share(int(end - begin), row); });
}

// All log-probabilities of rows begin..end−1, (rows, vocabulary).
void clearhead_logp(Engine* engine, const Room* room, int64_t begin, int64_t end, float* to) {
  const int vocabulary = engine->model().vocabulary;
  Team& team = engine->team();
  team.run([&](int) {
    team.share(int(end - begin), [&](int i) {
      const float* from = room->logits + (begin + i) * room->stride;
      const float norm = room->norms[begin + i];
      float* out = to + int64_t(i) * vocabulary;
      for (int id = 0; id < vocabulary; ++id) out[id] = from[id] - norm;
    });
  });
}

}  // extern "C"
