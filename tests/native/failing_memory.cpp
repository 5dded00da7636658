// Memory that runs out at every place where the engine asks for some: the n-th request fails, for every n, and those
// behind it too or not. A call that fails must leave everything as it was, and the same call with memory must give
// what an undisturbed engine gives, bit for bit.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace scarcity {

std::atomic<long> left{-1};        // requests that are granted; below 0: all
std::atomic<bool> once{false};     // whether there is memory again behind the one that fails
std::atomic<long> refused{0};

bool refuse() {
  long now = left.load();
  while (now >= 0 && !left.compare_exchange_weak(now, now ? now - 1 : once ? -1 : 0)) {
  }
  if (now == 0) ++refused;
  return now == 0;
}

void* get(size_t size, size_t step) {
  if (refuse()) throw std::bad_alloc();
  void* found = step ? std::aligned_alloc(step, (size + step - 1) / step * step) : std::malloc(size ? size : 1);
  if (!found) std::abort();
  return found;
}

}  // namespace scarcity

void* operator new(size_t size) { return scarcity::get(size, 0); }
void* operator new(size_t size, std::align_val_t step) { return scarcity::get(size, size_t(step)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return scarcity::refuse() ? nullptr : std::malloc(size ? size : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace std {
inline void* scarce_alloc(size_t step, size_t size) { return scarcity::refuse() ? nullptr : aligned_alloc(step, size); }
}  // namespace std

#define aligned_alloc scarce_alloc
#include "engine.cpp"
#undef aligned_alloc

namespace {

void demand(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

// A small model with numbers that look like a trained one's.
class World {
 public:
  World(bool has_source, Kind kind) : kind_(kind), encoder_(has_source ? 1 : 0), decoder_(2) {
    model.width = WIDTH;
    model.vocabulary = model.source_vocabulary = VOCABULARY;
    model.encoder_layers = int(encoder_.size());
    model.decoder_layers = 2;
    model.heads = 4;
    model.groups = 2;
    model.key_dim = model.value_dim = 8;
    model.inner = 48;
    model.activation = GELU;
    model.norm_first = 1;
    model.has_source = has_source;
    model.eps = 1e-5f;
    model.scale = 0.35f;
    model.embedding_factor = model.output_factor = 1.0f;
    model.source_table = model.target_table = numbers(VOCABULARY * WIDTH, 1.0f);
    model.encoder_norm = model.decoder_norm = norm();
    for (Layer& one : encoder_) fill(one, false);
    for (Layer& one : decoder_) fill(one, has_source);
    model.encoder = encoder_.data();
    model.decoder = decoder_.data();
    model.output = matrix(VOCABULARY, WIDTH, -std::numeric_limits<float>::infinity());
    tables.capacity = 64;
    tables.source = tables.target = numbers(64 * WIDTH, 0.3f);
  }
  ~World() {
    for (PackedMatrix* one : matrices_) clearhead_matrix_free(one);
    for (char* one : memory_) std::free(one);
  }

  static constexpr int WIDTH = 32, VOCABULARY = 900;
  Model model{};
  Tables tables{};

 private:
  float* numbers(size_t count, float spread) {
    kept_.emplace_back(count);
    for (float& one : kept_.back()) {
      seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
      one = (float(seed_ >> 40) / float(1 << 24) - 0.5f) * 2 * spread;
    }
    return kept_.back().data();
  }

  Norm norm() { return {numbers(WIDTH, 1.0f), numbers(WIDTH, 0.1f)}; }

  const PackedMatrix* matrix(int outputs, int inputs, float beyond = 0) {
    const Kernels* kernels = clearhead_kernels("");
    memory_.push_back(
        static_cast<char*>(std::aligned_alloc(64, clearhead_bytes_for_matrix(kernels, outputs, inputs, kind_))));
    matrices_.push_back(clearhead_matrix(kernels, outputs, inputs, kind_, memory_.back()));
    clearhead_matrix_bias(matrices_.back(), numbers(outputs, 0.1f), beyond);
    const float* weights = numbers(size_t(outputs) * inputs, 0.4f);
    demand(clearhead_matrix_pack(matrices_.back(), weights, 0, outputs, 2) == 1, "a matrix cannot be packed");
    return matrices_.back();
  }

  void fill(Layer& layer, bool cross) {
    layer.query_key_value = matrix(64, WIDTH);
    layer.attention_output = matrix(WIDTH, 32);
    layer.inner = matrix(48, WIDTH);
    layer.outer = matrix(WIDTH, 48);
    layer.attention_norm = norm();
    layer.feedforward_norm = norm();
    if (!cross) return;
    layer.cross_query = matrix(32, WIDTH);
    layer.cross_key_value = matrix(32, WIDTH);
    layer.cross_output = matrix(WIDTH, 32);
    layer.cross_norm = norm();
  }

  Kind kind_;
  uint64_t seed_ = 7;
  std::vector<std::vector<float>> kept_;
  std::vector<char*> memory_;
  std::vector<PackedMatrix*> matrices_;
  std::vector<Layer> encoder_, decoder_;
};

// An engine with room for scores, and everything that it has said.
class Session {
 public:
  static constexpr int MOST = 80;

  Session(const World& world, int threads) : engine(clearhead_engine(&world.model, threads)) {
    demand(engine, "there is no engine");
    clearhead_tables(engine, &world.tables);
    const int64_t stride = int64_t(world.model.output->panels) * engine->kernels().panel;
    logits_.resize(MOST * stride);
    peaks_.resize(MOST * world.model.output->panels * 2);
    norms_.resize(MOST);
    buffer = {logits_.data(), stride, peaks_.data(), norms_.data(), nullptr, nullptr, 0};
  }
  ~Session() { clearhead_engine_free(engine); }

  // A call with ever more memory, until it succeeds; as long as it does not, nothing changes.
  int64_t insist(const std::function<int64_t()>& call) {
    const int64_t rows = clearhead_rows(engine), slots = clearhead_slots(engine), longest = clearhead_longest(engine);
    for (long granted = 0; scarce; ++granted) {
      const int64_t found = with(granted, call);
      if (found > 0) return found;
      demand(rows == clearhead_rows(engine) && slots == clearhead_slots(engine) &&
                 longest == clearhead_longest(engine),
             "a call that failed has changed the rows");
      ++failures;
    }
    const int64_t found = call();
    demand(found > 0, "a call fails without a reason");
    return found;
  }

  static int64_t with(long granted, const std::function<int64_t()>& call) {
    const long before = scarcity::refused;
    scarcity::left = granted;
    const int64_t found = call();
    scarcity::left = -1;
    demand(found > 0 || scarcity::refused > before, "a call fails without a reason");
    return found;
  }

  void say(const void* numbers, size_t bytes) { said.append(static_cast<const char*>(numbers), bytes); }

  Engine* engine;
  ScoreBuffer buffer{};
  bool scarce = false;
  long failures = 0;
  std::string said;

 private:
  std::vector<float> logits_, peaks_, norms_;
};

// Some rows leave, and some of those come back; the last step's scores of the rows are no longer in their order. All go
// on with one token; how many there are.
int64_t leave_and_come_back(Session& session) {
  Engine* engine = session.engine;
  int64_t held[3];
  for (int64_t& one : held) one = session.insist([&] { return clearhead_take(engine, 1, 3); });
  const int64_t slots = clearhead_slots(engine);
  for (const int which : {2, 0})
    session.insist([&] { return clearhead_join(engine, held[which]); });
  demand(clearhead_slots(engine) == slots && clearhead_join(engine, held[0]) == -1, "rows join twice");
  Session::with(0, [&]() -> int64_t {  // needs no memory
    clearhead_drop(engine, held[1]);
    return 1;
  });
  demand(clearhead_slots(engine) < slots, "dropped rows keep their memory");
  std::vector<int64_t> parent, token;
  for (int64_t i = 0; i < clearhead_rows(engine); ++i) {
    parent.push_back(i);
    token.push_back(5 + i);
  }
  const int64_t rows = int64_t(parent.size());
  session.insist([&] { return clearhead_step(engine, parent.data(), token.data(), rows, &session.buffer); });
  return rows;
}

// New requests, steps that cross rows over and drop some, more requests, and everything that scores are asked.
void walk(Session& session, bool scarce) {
  session.scarce = scarce;
  std::vector<int64_t> ids, lengths;
  for (int i = 0; i < 20; ++i) {
    lengths.push_back(1 + i % 9);
    for (int t = 0; t < lengths.back(); ++t) ids.push_back((31 * i + 7 * t) % World::VOCABULARY);
  }
  std::vector<float> values(size_t(Session::MOST) * 40), all(size_t(Session::MOST) * World::VOCABULARY);
  std::vector<int64_t> best(values.size());
  auto ask = [&](int64_t rows) {
    session.insist(
        [&] { return clearhead_top(session.engine, &session.buffer, 0, rows, 40, values.data(), best.data()); });
    session.insist([&] { return clearhead_logp(session.engine, &session.buffer, 0, rows, all.data()); });
    session.say(values.data(), rows * 40 * sizeof(float));
    session.say(best.data(), rows * 40 * sizeof(int64_t));
    session.say(all.data(), rows * World::VOCABULARY * sizeof(float));
  };
  auto admit = [&](int64_t count) {
    session.insist([&] {
      return clearhead_admit(session.engine, ids.data(), lengths.data(), count, 1, &session.buffer);
    });
    ask(count);
  };
  admit(20);
  for (int step = 0; step < 6; ++step) {
    std::vector<int64_t> parent, token;
    const int64_t rows = clearhead_rows(session.engine);
    for (int64_t i = 0; i < rows; ++i) {
      if (i % 5 == 4) continue;
      parent.push_back(i / 3 * 3);
      token.push_back(best[(step == 3 ? 0 : parent.back()) * 40 + i % 3]);
    }
    session.insist([&] {
      return clearhead_step(session.engine, parent.data(), token.data(), int64_t(parent.size()), &session.buffer);
    });
    ask(int64_t(parent.size()));
    if (step == 2) admit(7);
    if (step == 4) ask(leave_and_come_back(session));
  }
  clearhead_step(session.engine, nullptr, nullptr, 0, &session.buffer);
  demand(clearhead_rows(session.engine) == 0 && clearhead_slots(session.engine) == 0, "slots were not given back");
}

constexpr int64_t REQUESTS = 6;
using OwnBeam = std::unique_ptr<Beam, void (*)(Beam*)>;
using Found = std::map<int64_t, std::vector<int32_t>>;  // the best text of each request, by number

// Requests that have just been admitted, and the beam that searches for them.
OwnBeam begin(Session& session) {
  std::vector<int64_t> ids(REQUESTS * 3), lengths(REQUESTS, 3), limits(REQUESTS, 9);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int64_t(5 * i + 3);
  std::vector<uint8_t> kinds(World::VOCABULARY, 0);
  for (int i = 2; i < World::VOCABULARY; i += 40) kinds[i] = STOP;
  const std::vector<double> last(REQUESTS, 9.0);
  const BeamOptions options{4, 4, 32, 2, 1, NEVER, SCORED, kinds.data()};
  clearhead_admit(session.engine, ids.data(), lengths.data(), REQUESTS, 1, &session.buffer);
  return {clearhead_beam(&options, World::VOCABULARY, limits.data(), last.data(), REQUESTS), clearhead_beam_free};
}

void collect(const Beam* beam, Found& found) {
  for (int64_t i = 0; i < clearhead_beam_decided(beam); ++i) {
    BeamAnswer answer;
    BeamText text;
    clearhead_beam_answer(beam, i, &answer);
    clearhead_beam_text(beam, i, 0, &text);
    found[answer.number].assign(text.tokens, text.tokens + text.count);
  }
}

// A beam search, in whose `failing`-th step memory runs out after `granted` pieces; whether it got so far.
bool search(const World& world, int threads, bool striding, int failing, long granted, Found& found) {
  Session session(world, threads);
  const OwnBeam beam = begin(session);
  std::vector<int64_t> parent(REQUESTS * 4), token(REQUESTS * 4);
  const std::vector<double> divisors{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (int step = 0;; ++step) {
    const int64_t before = clearhead_rows(session.engine);
    Strider strider{beam.get(), &session.buffer, 0, before, divisors.data() + step};
    auto advance = [&]() -> int64_t {
      if (striding) return clearhead_beam_stride(session.engine, &strider, 1, 1, 99, &session.buffer);
      return 1 + clearhead_beam_advance(beam.get(), session.engine, &session.buffer, 0, step + 1.0, step + 2.0,
                                        parent.data(), token.data());
    };
    const int64_t rows = step == failing ? Session::with(granted, advance) : advance();
    if (rows <= 0) {
      demand(step == failing, "a search fails without a reason");
      demand(clearhead_rows(session.engine) == before, "a search that failed has changed the rows");
      demand(clearhead_beam_decided(beam.get()) == 0 && advance() <= 0, "a search goes on after it was cut off");
      clearhead_step(session.engine, nullptr, nullptr, 0, &session.buffer);
      demand(clearhead_slots(session.engine) == 0, "slots were not given back");
      return false;
    }
    if (!striding) clearhead_step(session.engine, parent.data(), token.data(), rows - 1, &session.buffer);
    if (clearhead_rows(session.engine) == 0) break;
  }
  demand(clearhead_beam_decided(beam.get()) == REQUESTS, "not all requests were decided");
  collect(beam.get(), found);
  return true;
}

// The same search by three beams that the first becomes after a few steps; whenever memory runs out meanwhile, all
// beams stay what they were.
Found search_in_parts(const World& world, int threads, long& failures) {
  Session session(world, threads);
  std::vector<OwnBeam> beams;
  beams.push_back(begin(session));
  const std::vector<double> divisors{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  Strider first{beams[0].get(), &session.buffer, 0, REQUESTS, divisors.data()};
  demand(clearhead_beam_stride(session.engine, &first, 1, 3, 99, &session.buffer) == 3, "a search cannot begin");
  for (const int64_t first : {4, 2}) {
    for (const int64_t wrong : {-1, 5, 9})
      demand(!clearhead_beam_take(beams[0].get(), wrong, 2), "requests leave that are not there");
    Beam* made = nullptr;
    for (long granted = 0; !made; ++granted) {
      scarcity::left = granted;
      made = clearhead_beam_take(beams[0].get(), first, 2);
      scarcity::left = -1;
      failures += !made;
    }
    beams.emplace(beams.begin() + 1, made, clearhead_beam_free);
  }
  std::vector<Strider> striders;
  int64_t offset = 0;
  for (size_t i = 0; i < beams.size(); ++i) {
    int64_t layout[2 * REQUESTS];
    demand(clearhead_beam_layout(beams[i].get(), layout) == 2, "a beam has lost requests");
    demand(layout[0] == int64_t(2 * i) && layout[2] == int64_t(2 * i + 1), "requests have other numbers");
    const int64_t rows = layout[1] + layout[3];
    striders.push_back({beams[i].get(), &session.buffer, offset, rows, divisors.data() + 3});
    offset += rows;
  }
  demand(offset == clearhead_rows(session.engine), "rows belong to no beam");
  clearhead_beam_stride(session.engine, striders.data(), 3, 8, 99, &session.buffer);
  demand(clearhead_slots(session.engine) == 0, "slots were not given back");
  Found found;
  for (const OwnBeam& one : beams) collect(one.get(), found);
  return found;
}

void check(bool has_source, Kind kind, int threads) {
  const World world(has_source, kind);
  Session undisturbed(world, threads);
  walk(undisturbed, false);
  long failures = 0;
  for (const bool once : {true, false}) {
    scarcity::once = once;
    Session session(world, threads);
    walk(session, true);
    demand(session.said == undisturbed.said, "after memory has run out, numbers are others");
    demand(session.failures > 200, "memory runs out too seldom: " + std::to_string(session.failures));
    failures += session.failures;
  }
  for (const bool striding : {false, true}) {
    Found wanted;
    search(world, threads, striding, -1, 0, wanted);
    demand(search_in_parts(world, threads, failures) == wanted, "a beam in parts finds something else");
    for (int step : {0, 1, 4}) {
      Found found;
      for (long granted = 0; !search(world, threads, striding, step, granted, found); ++granted) ++failures;
      demand(found == wanted, "a search finds something else");
    }
  }
  std::printf("%s, kind %d, %d threads: memory ran out %ld times\n", has_source ? "source" : "prompt", int(kind),
              threads, failures);
}

}  // namespace

int main() {
  for (const bool has_source : {true, false})
    for (const int threads : {1, 3}) check(has_source, threads == 1 ? FLOAT32 : INT8, threads);
}
