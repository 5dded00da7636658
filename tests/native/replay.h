// Walks through a recording with the engine's own functions: weights that are packed once, and replays of the calls.
//
// Included behind the engine's sources, whose structs it fills: a change of them that it has not followed does not
// compile, or is refused by a count.
#pragma once

#include <memory>

#include "recording.h"

namespace recording {

using namespace clearhead;

// What all copies of a replay share: packed weights and the models made of them.
class Shared {
 public:
  Shared(const Kernels* kernels, int threads) : kernels_(kernels), threads_(threads) {}
  ~Shared() {
    for (PackedMatrix* one : matrices_) clearhead_matrix_free(one);
  }

  void matrix(Reader& from) {
    const int64_t kind = from.number(), outputs = from.number(), inputs = from.number();
    const double beyond = from.real();
    const auto weights = from.list<float>(), bias = from.list<float>();
    demand(int64_t(weights.size()) == outputs * inputs, "a matrix has another size");
    // exactly as many bytes as the engine asks for: a sanitizer sees one beyond
    memory_.emplace_back(static_cast<char*>(
        std::aligned_alloc(64, clearhead_bytes_for_matrix(kernels_, outputs, inputs, int32_t(kind)))));
    PackedMatrix* made = clearhead_matrix(kernels_, outputs, inputs, int32_t(kind), memory_.back().get());
    demand(made, "a matrix cannot be made");
    matrices_.push_back(made);
    clearhead_matrix_bias(made, pointer(bias), float(beyond));
    const int64_t step = (outputs / panel() + 1) / 2 * panel();  // in two portions, where there are panels enough
    for (int64_t begin = 0; begin < outputs; begin += std::max(step, panel()))
      demand(clearhead_matrix_pack(made, weights.data() + begin * inputs, begin,
                                   std::min(std::max(step, panel()), outputs - begin), std::max(1, threads_)) == 1,
             "a matrix cannot be packed");
  }

  void model(Reader& from) {
    int32_t Model::*const numbers[] = {
        &Model::width, &Model::vocabulary, &Model::source_vocabulary, &Model::encoder_layers, &Model::decoder_layers,
        &Model::heads, &Model::groups,     &Model::key_dim,           &Model::value_dim,      &Model::inner,
        &Model::gated, &Model::activation, &Model::rms,               &Model::norm_first,     &Model::rotary_halves,
        &Model::has_source, &Model::latent, &Model::rotary_dim, &Model::query_latent};
    float Model::*const reals[] = {&Model::eps, &Model::scale, &Model::softcap, &Model::embedding_factor,
                                   &Model::output_factor};
    auto made = std::make_unique<Model>();
    fill(*made, numbers, from.list<int32_t>());
    fill(*made, reals, from.list<float>());
    made->source_table = keep(from);
    made->target_table = keep(from);
    for (Norm Model::*one : {&Model::source_norm, &Model::target_norm, &Model::encoder_norm, &Model::decoder_norm})
      (*made).*one = norm(from);
    made->encoder = layers(from);
    made->decoder = layers(from);
    const auto used = from.list<int32_t>();
    demand(used.size() == 3, "the driver and the Python side know different matrices of a model");
    made->output = matrix(used[0]);
    made->source_rows = matrix(used[1]);
    made->target_rows = matrix(used[2]);
    models_.push_back(std::move(made));
  }

  const Model* model(int64_t number) const { return models_.at(number).get(); }
  int64_t models() const { return int64_t(models_.size()); }
  int64_t panel() const { return clearhead_panel(kernels_); }

 private:
  template <class T, size_t N>
  static void fill(Model& model, T Model::*const (&fields)[N], const std::vector<T>& values) {
    demand(values.size() == N, "the driver and the Python side know different fields of a model");
    for (size_t i = 0; i < N; ++i) model.*fields[i] = values[i];
  }

  const PackedMatrix* matrix(int32_t number) const { return number < 0 ? nullptr : matrices_.at(number); }

  const float* keep(Reader& from) {
    kept_.push_back(from.list<float>());
    return pointer(kept_.back());
  }

  Norm norm(Reader& from) {
    const float* weight = keep(from);
    return {weight, keep(from)};
  }

  const Layer* layers(Reader& from) {
    const int64_t count = from.number();
    if (count == 0) return nullptr;
    std::vector<Layer> made(count);
    for (Layer& layer : made) {
      const auto used = from.list<int32_t>();
      demand(used.size() == 8, "the driver and the Python side know different matrices of a layer");
      const PackedMatrix* Layer::*const matrices[] = {
          &Layer::query_key_value, &Layer::queries,      &Layer::attention_output, &Layer::cross_query,
          &Layer::cross_key_value, &Layer::cross_output, &Layer::inner,            &Layer::outer};
      for (int i = 0; i < 8; ++i) layer.*matrices[i] = matrix(used[i]);
      for (Norm Layer::*one : {&Layer::attention_norm, &Layer::cross_norm, &Layer::feedforward_norm,
                               &Layer::latent_norm, &Layer::query_norm})
        layer.*one = norm(from);
    }
    stacks_.push_back(std::move(made));
    return stacks_.back().data();
  }

  const Kernels* const kernels_;
  const int threads_;
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<char, Free>> memory_;
  std::vector<PackedMatrix*> matrices_;
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<std::vector<float>> kept_;
  std::vector<std::vector<Layer>> stacks_;
};

// Scores of admit or step: exactly as much room as the Python side gives.
struct Scores {
  std::vector<float> logits, peaks, norms, hidden, attention;
  ScoreBuffer buffer;

  Scores(const Model& model, int64_t panel, int64_t rows, int64_t stride, bool hides, bool attends) {
    const int64_t panels = (model.vocabulary + panel - 1) / panel;
    logits.resize(rows * panels * panel);
    peaks.resize(rows * panels * 2);
    norms.resize(rows);
    if (hides) hidden.resize(rows * model.width);
    if (attends) attention.resize(rows * stride);
    buffer = {logits.data(), panels * panel, peaks.data(), norms.data(),
            hides ? hidden.data() : nullptr, attends ? attention.data() : nullptr, stride};
  }
};

// One walk through a recording, with engines and beams of its own.
class Replay {
 public:
  Replay(const Shared& shared, int threads) : shared_(shared), threads_(threads) {}
  ~Replay() {
    for (Beam* one : beams_) clearhead_beam_free(one);
    for (Running& one : engines_) clearhead_engine_free(one.engine);
  }
  Replay(const Replay&) = delete;

  void record(int64_t kind, Reader& from) {
    switch (kind) {
      case ENGINE: return engine(from);
      case TABLES: return tables(from);
      case ADMIT: return admit(from);
      case STEP: return step(from);
      case TOP: return top(from);
      case BEAM: return beam(from);
      case ADVANCE: return advance(from);
      case STRIDE: return stride(from);
      case ANSWER: return answer(from);
      case FORGET: return clearhead_beam_forget(beams_.at(from.number()));
      case TAKE: return take(from);
      case JOIN: return join(from);
      case DROP: return drop(from);
      case SPLIT: return split(from);
      default: throw Wrong{"there is no such record"};
    }
  }

  const Differences& differences() const { return differences_; }

 private:
  struct Running {
    Engine* engine;
    const Model* model;
    std::vector<std::vector<float>> tables;
  };

  void engine(Reader& from) {
    const Model* model = shared_.model(from.number());
    const int64_t threads = from.number();
    Engine* made = clearhead_engine(model, int32_t(threads_ ? threads_ : threads));
    demand(made, "an engine cannot be made");
    engines_.push_back({made, model, {}});
  }

  void tables(Reader& from) {
    Running& one = engines_.at(from.number());
    Tables made{};
    made.capacity = from.number();
    std::vector<std::vector<float>> kept;
    for (const float* Tables::*field : {&Tables::source, &Tables::target, &Tables::cosine, &Tables::sine,
                                        &Tables::encoder_bias, &Tables::decoder_bias}) {
      kept.push_back(from.list<float>());
      made.*field = pointer(kept.back());
    }
    clearhead_tables(one.engine, &made);
    one.tables.swap(kept);
  }

  void admit(Reader& from) {
    Running& one = engines_.at(from.number());
    const int64_t start = from.number();
    const auto lengths = from.list<int64_t>(), ids = from.list<int64_t>();
    compare(one, from, int64_t(lengths.size()), 0, [&](const ScoreBuffer* buffer) {
      return clearhead_admit(one.engine, ids.data(), lengths.data(), int64_t(lengths.size()), int32_t(start), buffer);
    });
  }

  void step(Reader& from) {
    Running& one = engines_.at(from.number());
    const auto parents = from.list<int64_t>(), tokens = from.list<int64_t>();
    compare(one, from, int64_t(parents.size()), 0, [&](const ScoreBuffer* buffer) {
      return clearhead_step(one.engine, parents.data(), tokens.data(), int64_t(parents.size()), buffer);
    });
  }

  // `most`: rows that there must be room for on the way.
  template <class Call>
  void compare(Running& one, Reader& from, int64_t rows, int64_t most, Call call) {
    demand(from.number() == rows, "the recording has scores of another number of rows");
    const int64_t stride = from.number();
    const double largest = from.real(), mean = from.real();
    const auto logp = from.list<float>(), hidden = from.list<float>(), attention = from.list<float>();
    scores_.push_back(std::make_unique<Scores>(*one.model, shared_.panel(), std::max(rows, most), stride,
                                               !hidden.empty(), !attention.empty()));
    const Scores& mine = *scores_.back();
    demand(call(&mine.buffer) == 1, "the engine refuses the call");
    demand(int64_t(logp.size()) == rows * one.model->vocabulary, "the recording has too few scores");
    std::vector<float> found(logp.size());
    demand(clearhead_logp(one.engine, &mine.buffer, 0, rows, found.data()) == 1, "there are no such rows");
    demand(clearhead_rows(one.engine) >= rows, "the engine has lost rows");
    Differences here;
    here.add(logp, found.data(), largest, "log-probability");
    demand(here.mean() <= mean, "log-probabilities differ too much on average");
    here.add(hidden, mine.hidden.data(), largest, "hidden number");
    here.add(attention, mine.attention.data(), largest, "attention");
    differences_.largest = std::max(differences_.largest, here.largest);
    differences_.sum += here.sum;
    differences_.count += here.count;
  }

  void top(Reader& from) {
    Running& one = engines_.at(from.number());
    const Scores& scores = *scores_.at(from.number());
    const int64_t begin = from.number(), end = from.number(), count = from.number();
    const double largest = from.real();
    const auto values = from.list<float>();
    const auto ids = from.list<int64_t>();
    demand(int64_t(ids.size()) == (end - begin) * count, "the recording has another number of best tokens");
    std::vector<float> found(ids.size());
    std::vector<int64_t> best(ids.size());
    demand(clearhead_top(one.engine, &scores.buffer, begin, end, count, found.data(), best.data()) == 1,
           "there are no such rows");
    differences_.add(values, found.data(), largest, "best log-probability");
    demand(best == ids, "other tokens are the best");
  }

  void beam(Reader& from) {
    int32_t BeamOptions::*const fields[] = {&BeamOptions::width, &BeamOptions::kept,  &BeamOptions::candidates,
                                          &BeamOptions::stop,   &BeamOptions::stops, &BeamOptions::early,
                                          &BeamOptions::forced};
    const int64_t vocabulary = from.number();
    const auto numbers = from.list<int32_t>();
    const auto kinds = from.list<uint8_t>();
    const auto limits = from.list<int64_t>();
    const auto last = from.list<double>();
    BeamOptions options{};
    demand(numbers.size() == sizeof(fields) / sizeof(*fields), "the driver and the Python side know different options");
    for (size_t i = 0; i < numbers.size(); ++i) options.*fields[i] = numbers[i];
    options.kinds = kinds.data();
    beams_.push_back(clearhead_beam(&options, vocabulary, limits.data(), last.data(), int64_t(limits.size())));
    demand(beams_.back(), "a beam cannot be made");
    rows_.push_back(int64_t(limits.size()) * options.width);
  }

  void advance(Reader& from) {
    const int64_t number = from.number();
    Running& one = engines_.at(from.number());
    const Scores& scores = *scores_.at(from.number());
    const int64_t begin = from.number();
    const double now = from.real(), next = from.real();
    const auto parents = from.list<int64_t>(), tokens = from.list<int64_t>();
    std::vector<int64_t> parent(rows_.at(number)), token(rows_.at(number));
    const int64_t rows = clearhead_beam_advance(beams_.at(number), one.engine, &scores.buffer, begin, now, next,
                                                parent.data(), token.data());
    demand(rows == int64_t(parents.size()), "a beam goes on with another number of rows");
    parent.resize(rows);
    token.resize(rows);
    demand(parent == parents && token == tokens, "a beam goes on with other texts");
  }

  void stride(Reader& from) {
    Running& one = engines_.at(from.number());
    const int64_t most = from.number(), enough = from.number(), wide = from.number(), count = from.number();
    std::vector<Strider> beams(count);
    std::vector<std::vector<double>> divisors(count);
    for (int64_t i = 0; i < count; ++i) {
      beams[i].beam = beams_.at(from.number());
      beams[i].buffer = &scores_.at(from.number())->buffer;
      beams[i].begin = from.number();
      beams[i].rows = from.number();
      divisors[i] = from.list<double>();
      beams[i].divisors = divisors[i].data();
    }
    const int64_t steps = from.number();
    const auto left = from.list<int64_t>();
    int64_t rows = 0;
    for (int64_t each : left) rows += each;
    compare(one, from, rows, wide, [&](const ScoreBuffer* buffer) {
      demand(clearhead_beam_stride(one.engine, beams.data(), count, most, enough, buffer) == steps,
             "beams take another number of steps");
      for (int64_t i = 0; i < count; ++i) demand(beams[i].rows == left[i], "a beam goes on with other rows");
      return 1;
    });
  }

  void take(Reader& from) {
    Running& one = engines_.at(from.number());
    const int64_t begin = from.number(), end = from.number(), before = clearhead_rows(one.engine);
    taken_.push_back(clearhead_take(one.engine, begin, end));
    demand(taken_.back() > 0 && clearhead_rows(one.engine) == before - (end - begin), "rows cannot be taken");
  }

  void join(Reader& from) {
    Running& one = engines_.at(from.number());
    const int64_t number = taken_.at(from.number());
    demand(clearhead_join(one.engine, number) == 1, "rows cannot join again");
    demand(clearhead_join(one.engine, number) == -1, "rows join twice");
  }

  void drop(Reader& from) {
    Running& one = engines_.at(from.number());
    const int64_t number = taken_.at(from.number()), slots = clearhead_slots(one.engine);
    clearhead_drop(one.engine, number);
    demand(clearhead_slots(one.engine) < slots, "rows that were dropped keep their memory");
  }

  void split(Reader& from) {
    const int64_t number = from.number();
    const auto layout = from.list<int64_t>();
    const int64_t first = from.number(), count = from.number();
    std::vector<int64_t> mine(2 * rows_.at(number));
    mine.resize(2 * clearhead_beam_layout(beams_.at(number), mine.data()));
    demand(mine == layout, "requests of a beam have other rows");
    beams_.push_back(clearhead_beam_take(beams_.at(number), first, count));
    demand(beams_.back(), "a beam cannot be split");
    rows_.push_back(rows_.at(number));
  }

  void answer(Reader& from) {
    const Beam* beam = beams_.at(from.number());
    const int64_t which = from.number();
    demand(which < clearhead_beam_decided(beam), "a beam has decided fewer requests");
    BeamAnswer mine;
    clearhead_beam_answer(beam, which, &mine);
    demand(mine.number == from.number() && mine.broken == from.number() && mine.dead == from.number(),
           "a beam has decided another request, or otherwise");
    const int64_t texts = from.number();
    demand(mine.texts == texts, "a beam has found another number of texts");
    for (int64_t rank = 0; rank < texts; ++rank) {
      BeamText text;
      clearhead_beam_text(beam, which, rank, &text);
      const double largest = from.real(), score = from.real();
      demand(std::abs(score - text.score) <= largest, "a text scores differently");
      demand(from.number() == text.willing, "a text ends for another reason");
      const auto tokens = from.list<int32_t>();
      demand(tokens == std::vector<int32_t>(text.tokens, text.tokens + text.count), "a beam has found another text");
      const auto logps = from.list<float>();
      demand(int64_t(logps.size()) == text.count, "a text has another length");
      differences_.add(logps, text.logps, largest, "log-probability of a text");
    }
  }

  const Shared& shared_;
  const int threads_;
  std::vector<Running> engines_;
  std::vector<std::unique_ptr<Scores>> scores_;
  std::vector<Beam*> beams_;
  std::vector<int64_t> rows_;  // of a beam, at most
  std::vector<int64_t> taken_;
  Differences differences_;
};

}  // namespace recording
