// The engine's door: plain C functions, called from Python with pointers into tensors.
//
// What can fail returns 1 for done, 0 where memory ran out, −1 where it was given what makes no sense; what makes
// something returns nullptr where memory ran out. In both cases of failure everything is as it was before. Nothing
// is thrown across this border. An engine and its beams are for one thread at a time: the Python side sees to that.
#include "interface.h"
#include "processor.h"

#include <algorithm>

using namespace clearhead;

namespace {

// What work gives, or `failed` where it throws. That is want of memory, whatever its name: a list asked to be longer
// than lists can be is one too.
template <class Work>
auto made(Work&& work, decltype(work()) failed = {}) -> decltype(work()) {
  try {
    return work();
  } catch (...) {
    return failed;
  }
}

template <class Work>
int32_t attempt(Work&& work) {
  return made([&] { return work() ? 1 : -1; });
}

// Whether rows begin..end−1 are rows that there may be.
bool is_part(int64_t begin, int64_t end) { return begin >= 0 && end >= begin && end <= (int64_t(1) << 28); }

// Sizes whose sums and bytes of a row fit into 32 bits.
bool is_matrix(int64_t outputs, int64_t inputs, int32_t kind) {
  constexpr int64_t most = int64_t(1) << 28;
  return outputs > 0 && outputs <= most && inputs > 0 && inputs <= most && kind >= FLOAT32 && kind <= INT8;
}

}  // namespace

#pragma GCC visibility push(default)  // all else is compiled to be seen by nobody
extern "C" {

// The table of an instruction set by name, the best there is for an empty one; nullptr: it does not run here.
const Kernels* clearhead_kernels(const char* set) { return kernels_of(set); }
const char* clearhead_kernels_name(const Kernels* kernels) { return kernels->name; }
int64_t clearhead_panel(const Kernels* kernels) { return kernels->panel; }

// The name of the number-th set that runs here, best first; nullptr behind the last.
const char* clearhead_instruction_set(int64_t number) {
  for (const Kernels* one : ALL_SETS)
    if (runs(one->name) && number-- == 0) return one->name;
  return nullptr;
}

// Bytes that a packed matrix takes; 0 for what is no matrix.
int64_t clearhead_bytes_for_matrix(const Kernels* kernels, int64_t outputs, int64_t inputs, int32_t kind) {
  if (!is_matrix(outputs, inputs, kind)) return 0;
  return int64_t(PackedMatrix::bytes_for(kernels, int(outputs), int(inputs), Kind(kind)));
}

// A matrix that lies, or is to be packed, in `memory`, which must outlive it.
PackedMatrix* clearhead_matrix(const Kernels* kernels, int64_t outputs, int64_t inputs, int32_t kind, char* memory) {
  if (!is_matrix(outputs, inputs, kind)) return nullptr;
  return new (std::nothrow) PackedMatrix(kernels, int(outputs), int(inputs), Kind(kind), memory);
}

void clearhead_matrix_bias(PackedMatrix* matrix, const float* bias, float beyond) { matrix->set_bias(bias, beyond); }

// Pack `rows` outputs, which begin with that of a panel's first column, from weights (rows, inputs).
int32_t clearhead_matrix_pack(PackedMatrix* matrix, const float* weights, int64_t first, int64_t rows,
                              int32_t threads) {
  if (first < 0 || rows < 0 || first % matrix->kernels->panel || first + rows > matrix->outputs) return -1;
  return attempt([&] {
    const Kernels* kernels = matrix->kernels;
    const Matrix part = matrix->from_panel(int(first / kernels->panel));
    const int panels = int((rows + kernels->panel - 1) / kernels->panel);
    Team team(std::max(1, std::min<int>(threads, panels / 4)));
    team.run([&](int) { team.share(panels, [&](int panel) { kernels->pack_panel(part, panel, weights); }); });
    return true;
  });
}

void clearhead_matrix_free(PackedMatrix* matrix) { delete matrix; }
int64_t clearhead_matrix_bytes(const PackedMatrix* matrix) { return int64_t(matrix->size()); }

// The first part of a model that does not fit to the others; nullptr: all do.
const char* clearhead_misfit(const Model* model) { return misfit(*model); }

// nullptr for a model whose parts do not fit, too.
Engine* clearhead_engine(const Model* model, int32_t threads) {
  if (misfit(*model)) return nullptr;
  return made([&] { return new Engine(*model, threads); });
}

void clearhead_engine_free(Engine* engine) { delete engine; }
void clearhead_tables(Engine* engine, const Tables* tables) { engine->set_tables(*tables); }
int64_t clearhead_rows(const Engine* engine) { return engine->count(); }
int64_t clearhead_longest(const Engine* engine) { return engine->longest(); }
int64_t clearhead_longest_source(const Engine* engine) { return engine->longest_source(); }
int64_t clearhead_slots(const Engine* engine) { return engine->slots_in_use(); }
int64_t clearhead_bytes(const Engine* engine) { return engine->bytes(); }

int32_t clearhead_admit(Engine* engine, const int64_t* ids, const int64_t* lengths, int64_t count, int32_t start,
                        const ScoreBuffer* buffer) {
  return attempt([&] { return engine->admit(ids, lengths, count, start, *buffer); });
}

int32_t clearhead_step(Engine* engine, const int64_t* parent, const int64_t* token,
                       int64_t rows, const ScoreBuffer* buffer) {
  return attempt([&] { return engine->step(parent, token, rows, *buffer); });
}

// Rows leave, come back, or are forgotten: see engine.h. `take` gives their number, 0: no memory, −1: no such rows.
int64_t clearhead_take(Engine* engine, int64_t begin, int64_t end) {
  return made([&] { return engine->take(begin, end); });
}
int32_t clearhead_join(Engine* engine, int64_t number) {
  return attempt([&] { return engine->join(number); });
}
void clearhead_drop(Engine* engine, int64_t number) { engine->drop(number); }

// The best `count` of rows begin..end−1: values (rows, count) as log-probabilities, ids (rows, count).
int32_t clearhead_top(Engine* engine, const ScoreBuffer* buffer, int64_t begin, int64_t end, int64_t count,
                      float* values, int64_t* ids) {
  if (!is_part(begin, end) || count < 1 || count > engine->model().vocabulary) return -1;
  Team& team = engine->team();
  auto row = [&](int64_t i) {
    best(engine->scored(*buffer, begin + i), int(count), values + i * count, ids + i * count);
  };
  return attempt([&] {
    if (end - begin < 16)  // not worth waking anybody
      for (int64_t i = 0; i < end - begin; ++i) row(i);
    else
      team.run([&](int) { team.each(int(end - begin), row); });
    return true;
  });
}

// All log-probabilities of rows begin..end−1, (rows, vocabulary).
int32_t clearhead_logp(Engine* engine, const ScoreBuffer* buffer, int64_t begin, int64_t end, float* to) {
  if (!is_part(begin, end)) return -1;
  const int vocabulary = engine->model().vocabulary;
  Team& team = engine->team();
  auto row = [&](int i) {
    const float* from = buffer->logits + (begin + i) * buffer->stride;
    const float norm = buffer->norms[begin + i];
    float* out = to + int64_t(i) * vocabulary;
    for (int id = 0; id < vocabulary; ++id) out[id] = from[id] - norm;
  };
  return attempt([&] {
    team.run([&](int) { team.each(int(end - begin), row); });
    return true;
  });
}

Beam* clearhead_beam(const BeamOptions* options, int64_t vocabulary, const int64_t* limits, const double* last,
                     int64_t count) {
  return made([&] { return new Beam(*options, int(vocabulary), limits, last, count); });
}

void clearhead_beam_free(Beam* beam) { delete beam; }

// The next rows of a batch whose scores begin at row `begin` of the buffer; how many there are, −1: no memory. Then
// nothing more is to be had of this beam; the engine's rows are what they were.
int64_t clearhead_beam_advance(Beam* beam, Engine* engine, const ScoreBuffer* buffer, int64_t begin, double now,
                               double next, int64_t* parent, int64_t* token) {
  return made([&] { return beam->advance(*engine, *buffer, begin, {now, next}, parent, token); }, -1);
}

// The number of each active request and how many rows it has, in their order: (requests, 2). How many there are.
int64_t clearhead_beam_layout(const Beam* beam, int64_t* to) { return beam->layout(to); }

// Active requests first..first + count − 1 leave as a beam of their own. nullptr: no memory, or there are none such.
Beam* clearhead_beam_take(Beam* beam, int64_t first, int64_t count) {
  return made([&] { return beam->take(first, count).release(); });
}

// Several steps at once, see beam.h: how many were done, 0: no memory, −1: a beam chose what there is not. Then
// nothing more is to be had of these beams; the engine's rows are those of the last step that was done.
int64_t clearhead_beam_stride(Engine* engine, Strider* beams, int64_t count, int64_t most, int64_t enough,
                              const ScoreBuffer* buffer) {
  const int64_t done = made([&] { return stride(*engine, beams, count, most, enough, *buffer); });
  for (int64_t i = 0; done <= 0 && i < count; ++i) beams[i].beam->break_off();
  return done;
}

// Requests that were decided and not yet forgotten.
int64_t clearhead_beam_decided(const Beam* beam) {
  return beam->broken_off() ? 0 : int64_t(beam->decided().size());
}
void clearhead_beam_forget(Beam* beam) { beam->forget(); }

void clearhead_beam_answer(const Beam* beam, int64_t which, BeamAnswer* to) {
  const Decided& one = beam->decided()[which];
  *to = {one.number, int64_t(one.texts.size()), one.broken, one.dead};
}

void clearhead_beam_text(const Beam* beam, int64_t which, int64_t rank, BeamText* to) {
  const Ended& one = beam->decided()[which].texts[rank];
  *to = {one.score, int64_t(one.tokens.size()), one.tokens.data(), one.logps.data(), one.willing};
}

// What both sides must agree about: see interface.h. nullptr: no memory.
const char* clearhead_interface() {
  static const std::string* const text = made([] {
    return new std::string("interface " + std::to_string(INTERFACE) + "\n" + structs() +
        FUNCTION(kernels) + FUNCTION(kernels_name) + FUNCTION(panel) + FUNCTION(instruction_set) +
        FUNCTION(bytes_for_matrix) + FUNCTION(matrix) + FUNCTION(matrix_bias) + FUNCTION(matrix_pack) +
        FUNCTION(matrix_free) + FUNCTION(matrix_bytes) + FUNCTION(misfit) + FUNCTION(engine) + FUNCTION(engine_free) +
        FUNCTION(tables) + FUNCTION(rows) + FUNCTION(longest) + FUNCTION(longest_source) + FUNCTION(slots) +
        FUNCTION(bytes) + FUNCTION(admit) + FUNCTION(step) + FUNCTION(take) + FUNCTION(join) + FUNCTION(drop) +
        FUNCTION(top) + FUNCTION(logp) + FUNCTION(beam) + FUNCTION(beam_free) + FUNCTION(beam_advance) +
        FUNCTION(beam_layout) + FUNCTION(beam_take) + FUNCTION(beam_stride) + FUNCTION(beam_decided) +
        FUNCTION(beam_forget) + FUNCTION(beam_answer) + FUNCTION(beam_text));
  });
  return text ? text->c_str() : nullptr;
}

}  // extern "C"
#pragma GCC visibility pop
