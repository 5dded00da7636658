// The state of a beam search for one batch of requests: the same choices, number for number, that decoding/beam.py
// makes with tables, for the plain case (one group, nothing that shapes scores but forbidden symbols). What a step does
// and why it is right is said there; here it is done request by request.
//
// There every request has K rows. Here a row that cannot win any more is dropped at once, without a change to what is
// found. Call a text hopeless when its score over the largest divisor that is still to come does not beat the worst
// finished text, with as many finished as are kept: nothing it may become enters the pool.
// - It stays so: no token adds to a score, that divisor never grows (`Request::divisor`), the pool never gets worse.
//   So all that comes of a dropped row is hopeless.
// - At any step hopelessness is a matter of the score alone, and division by one number keeps the order: hopeless
//   extensions stand behind all others. Leaving some of them out moves none of the others in the ranking: the same
//   ones live on, and of those that end among the first K the same ones can enter the pool.
// A place without a text (score -inf) is the plainest case.
#pragma once

#include <iterator>
#include <limits>
#include <memory>
#include <vector>

#include "engine.h"

namespace clearhead {

constexpr double NOTHING = -std::numeric_limits<double>::infinity();

// What all requests of a batch have in common. The Python side's struct has the same fields in this order.
struct BeamOptions {
  int32_t width;            // K, active texts of a request
  int32_t kept;             // N, the best finished texts that are wanted
  int32_t candidates;       // C, tokens of each row that are worth a look
  int32_t stop;             // what a text gets at its limit if it has not chosen to end
  int32_t stops;            // how many symbols end a text
  int32_t early;            // when to stop: one of NEVER, …
  int32_t forced;           // what an end at the limit does to a score: one of SCORED, …
  const uint8_t* kinds;     // (vocabulary) FORBIDDEN and STOP, or'ed
};

enum : uint8_t { FORBIDDEN = 1, STOP = 2 };
enum : int32_t { NEVER = 0, WHEN_UNLIKELY = 1, WHEN_FULL = 2 };  // "never", false and true of `early_stopping`
enum : int32_t { SCORED = 0, FREE = 1, CUT = 2 };

// What the length penalty makes of texts that end in this step, and in the next.
struct Divisors {
  double now, next;
};
// A text that has ended, its stop symbol last.
struct Ended {
  double score;
  bool willing;  // whether the end was the model's own choice
  std::vector<int32_t> tokens;
  std::vector<float> logps;
};

struct Decided {
  int64_t number;  // of the request in the batch
  bool broken;     // a score is not a number
  bool dead;       // nothing may be written, before the limit was reached
  std::vector<Ended> texts;
};

class Beam {
 public:
  // `last` are the divisors of the longest texts that requests may become.
  Beam(const BeamOptions& options, int vocabulary, const int64_t* limits, const double* last, int64_t count)
      : options_(options),
        kinds_(options.kinds, options.kinds + vocabulary),
        requests_(count),
        live_(count, 0.0) {
    for (int64_t i = 0; i < count; ++i) {
      requests_[i].number = requests_[i].first = i;
      requests_[i].limit = limits[i];
      requests_[i].last_divisor = last[i];
    }
  }

  const std::vector<Decided>& decided() const { return decided_; }
  bool broken_off() const { return broken_off_; }
  void break_off() { broken_off_ = true; }
  void forget() { decided_.clear(); }
  int64_t most_rows() const { return int64_t(requests_.size()) * options_.width; }  // after the next step

  // The number of each active request and how many rows it has, in their order.
  int64_t layout(int64_t* to) const {
    for (const Request& one : requests_) {
      *to++ = one.number;
      *to++ = one.rows;
    }
    return int64_t(requests_.size());
  }

  // `count` active requests from the `at`-th on leave with their rows as a beam of their own; both keep their numbers.
  // nullptr: there are no such requests. Where memory runs out, nothing has changed.
  std::unique_ptr<Beam> take(int64_t at, int64_t count) {
    if (at < 0 || count < 1 || count > int64_t(requests_.size()) - at) return nullptr;
    const auto first = requests_.begin() + at, last = first + count;
    const int64_t begin = first->first, end = last[-1].first + last[-1].rows;
    std::unique_ptr<Beam> made(new Beam(*this, begin, end));
    made->requests_.reserve(count);
    std::move(first, last, std::back_inserter(made->requests_));  // from here on nothing needs memory
    for (Request& one : made->requests_) one.first -= begin;
    for (auto one = last; one != requests_.end(); ++one) one->first -= end - begin;
    requests_.erase(first, last);
    live_.erase(live_.begin() + begin, live_.begin() + end);
    tokens_.erase(tokens_.begin() + begin * stride_, tokens_.begin() + end * stride_);
    logps_.erase(logps_.begin() + begin * stride_, logps_.begin() + end * stride_);
    return made;
  }

  // Whether one of the decided requests has no text to show.
  bool failed() const {
    return std::any_of(decided_.begin(), decided_.end(), [](const Decided& one) { return one.broken || one.dead; });
  }

  // One more token for every text, from the buffer's rows from `begin` on: which row each new one goes on from, counted
  // from `begin`, and what it writes. Returns how many there are. Where memory runs out half-way, some requests have
  // their next token and others have not: nothing more is to be had of such a beam.
  int64_t advance(Engine& engine, const ScoreBuffer& buffer, int64_t begin, Divisors divisors, int64_t* parent,
                  int64_t* token) {
    if (broken_off_) throw std::bad_alloc();
    broken_off_ = true;
    divisors_ = divisors;
    const int count = int(requests_.size()), width = options_.width;
    choices_.resize(size_t(count) * width);
    workspaces_.resize(std::max(workspaces_.size(), size_t(engine.team().count())));
    auto decide = [&](int i, int self) { this->decide(engine, buffer, begin, i, workspaces_[self]); };
    if (count < 4)  // not worth waking anybody
      for (int i = 0; i < count; ++i) decide(i, 0);
    else
      engine.team().run([&](int self) { engine.team().each(count, [&](int i) { decide(i, self); }); });
    const int64_t rows = go_on(parent, token);
    broken_off_ = false;
    return rows;
  }

 private:
  struct Request {
    int64_t number, limit;
    int64_t first = 0;        // of its rows, which stand together
    int rows = 1;             // at most K
    double last_divisor;
    double divisor = std::numeric_limits<double>::infinity();  // the largest that may still come
    std::vector<Ended> pool;  // best first
    bool goes = true, broken = false;
  };

  // An extension of a text.
  struct Choice {
    double score;
    int32_t row, token;
    float own;
  };

  // What a thread works with.
  struct alignas(64) Workspace {
    std::vector<Choice> offers;
    std::vector<uint8_t> willing;
    std::vector<float> values;
    std::vector<int64_t> ids;
  };

  // Rows begin..end−1 of another beam, without their requests.
  Beam(const Beam& from, int64_t begin, int64_t end)
      : options_(from.options_),
        kinds_(from.kinds_),
        live_(from.live_.begin() + begin, from.live_.begin() + end),
        tokens_(from.tokens_.begin() + begin * from.stride_, from.tokens_.begin() + end * from.stride_),
        logps_(from.logps_.begin() + begin * from.stride_, from.logps_.begin() + end * from.stride_),
        written_(from.written_),
        stride_(from.stride_),
        broken_off_(from.broken_off_) {}

  // In the order of a stable sort: the larger, then what comes first; what is not a number last.
  static bool before(const Choice& a, const Choice& b) {
    if (a.score != a.score) return false;
    return b.score != b.score || a.score > b.score;
  }

  void decide(Engine& engine, const ScoreBuffer& buffer, int64_t begin, int which, Workspace& space) {
    Request& request = requests_[which];
    const int width = options_.width, wide = options_.candidates, rows = request.rows;
    std::vector<Choice>& offers = space.offers;
    std::vector<uint8_t>& willing = space.willing;
    offers.clear();
    willing.assign(rows, 1);
    for (int p = 0; p < rows; ++p) {
      const int row = int(request.first) + p;
      offer(engine.scored(buffer, begin + row), row, request.limit <= written_, space, willing[p]);
    }
    const int look = std::min((1 + options_.stops) * width, rows * wide);
    // Offers stand in the order of their rows: an insertion keeps equals in it, as a stable sort does.
    for (int i = 1; i < int(offers.size()); ++i) {
      const int top = std::min(i, look);
      if (i >= look && !before(offers[i], offers[look - 1])) continue;
      const Choice one = offers[i];
      int at = top;
      if (at == look) --at;
      for (; at > 0 && before(one, offers[at - 1]); --at) offers[at] = offers[at - 1];
      offers[at] = one;
    }
    for (int i = 0; i < std::min(width, look); ++i)
      if (stops(offers[i].token) && offers[i].score > NOTHING)
        collect(request, offers[i], willing[offers[i].row - request.first]);
    Choice* chosen = &choices_[size_t(which) * width];
    int taken = 0;
    auto take = [&](auto wanted) {  // a stop is no text that goes on: its place is left without one
      for (int i = 0; i < look && taken < width; ++i) {
        Choice one = offers[i];
        if (stops(one.token)) one.score = NOTHING;
        if (wanted(one.score)) chosen[taken++] = one;
      }
    };
    take([](double score) { return score > NOTHING; });
    take([](double score) { return score == NOTHING; });
    take([](double score) { return score != score; });
    request.broken = chosen[taken - 1].score != chosen[taken - 1].score;
    const double worst = worst_of(request);
    request.divisor = std::min(request.divisor, std::max(request.last_divisor, divisors_.next));
    int hopeful = 0;
    while (hopeful < taken && chosen[hopeful].score / request.divisor > worst) ++hopeful;
    request.goes = !request.broken && hopeful && goes_on(request, chosen[0].score, worst);
    if (!request.goes && !request.broken && request.pool.empty() && request.limit <= written_)
      cut(request, engine.scored(buffer, begin + best_row(request)), best_row(request));
    request.rows = hopeful;
  }

  bool stops(int64_t token) const { return kinds_[token] & STOP; }

  // What a text must beat to be kept.
  double worst_of(const Request& request) const {
    return int(request.pool.size()) == options_.kept ? request.pool.back().score : NOTHING;
  }

  // Whether the rule of stopping lets a request with hope go on, whose best live text scores `best`: see
  // decoding/stopping.py.
  bool goes_on(const Request& request, double best, double worst) const {
    if (options_.early == NEVER) return true;
    const bool wins = best / divisors_.now > worst;
    if (options_.early == WHEN_UNLIKELY) return wins;
    const bool cut = options_.forced == CUT && request.limit == written_ + 1;
    return best > NOTHING && (worst == NOTHING || (cut && wins));
  }

  // A row's extensions that are worth a look; at its limit it may write nothing but a stop symbol.
  void offer(const Scored& scored, int row, bool forced, Workspace& space, uint8_t& willing) const {
    std::vector<float>& values = space.values;
    std::vector<int64_t>& ids = space.ids;
    std::vector<Choice>& offers = space.offers;
    values.resize(options_.candidates);
    ids.resize(options_.candidates);
    best(scored, options_.candidates, values.data(), ids.data());
    double highest = NOTHING;
    int favourite = 0;
    for (int c = 0; c < options_.candidates; ++c) {
      double value = double(values[c]) + (kinds_[ids[c]] & FORBIDDEN ? NOTHING : 0.0);  // no number stays none
      if (value > highest) {
        highest = value;
        favourite = c;
      }
      if (forced) value = NOTHING;
      offers.push_back({live_[row] + value, row, int32_t(ids[c]), values[c]});
    }
    if (!forced) return;
    willing = stops(ids[favourite]);
    const int32_t stop = willing ? int32_t(ids[favourite]) : options_.stop;
    const float end = willing ? values[favourite] : scored.logits[stop] - scored.norm;
    const double added = options_.forced == SCORED ? double(end) : 0.0;
    offers[offers.size() - options_.candidates] = {live_[row] + added, row, stop, end};
  }

  // A text that ends here joins the best, if it is good enough; of equals the earlier stays ahead.
  void collect(Request& request, const Choice& end, bool willing) const {
    const bool uncounted = options_.forced == CUT && request.limit <= written_;
    const double score = end.score / (uncounted ? request.last_divisor : divisors_.now);
    std::vector<Ended>& pool = request.pool;
    if (int(pool.size()) == options_.kept && !(score > pool.back().score)) return;
    Ended ended = text(end.row, end.token, end.own, score, willing);
    auto at = pool.end();
    while (at != pool.begin() && score > (at - 1)->score) --at;
    pool.insert(at, std::move(ended));
    if (int(pool.size()) > options_.kept) pool.pop_back();
  }

  Ended text(int row, int32_t stop, float last, double score, bool willing) const {
    Ended ended{score, willing, {}, {}};
    const size_t from = size_t(row) * stride_;
    ended.tokens.assign(tokens_.begin() + from, tokens_.begin() + from + written_);
    ended.logps.assign(logps_.begin() + from, logps_.begin() + from + written_);
    ended.tokens.push_back(stop);
    ended.logps.push_back(last);
    return ended;
  }

  int best_row(const Request& request) const {
    int found = int(request.first);
    for (int row = found + 1; row < request.first + request.rows; ++row)
      if (live_[row] > live_[found]) found = row;
    return found;
  }

  // The best text at its limit, where none can end.
  void cut(Request& request, const Scored& scored, int row) const {
    const float last = scored.logits[options_.stop] - scored.norm;
    request.pool.push_back(text(row, options_.stop, last, (live_[row] + last) / divisors_.now, false));
  }

  // Requests that are decided leave; the rows of each of the others stand together.
  int64_t go_on(int64_t* parent, int64_t* token) {
    const int width = options_.width, stride = stride_ > written_ ? stride_ : int(written_) + 32;
    size_t left = 0;
    for (const Request& request : requests_) left += request.goes ? request.rows : 0;
    next_tokens_.resize(left * stride);
    next_logps_.resize(left * stride);
    live_.resize(left);
    size_t rows = 0, kept = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      Request& request = requests_[i];
      if (!request.goes) {
        const bool dead = !request.broken && request.pool.empty();
        decided_.push_back({request.number, request.broken, dead, std::move(request.pool)});
        continue;
      }
      request.first = int64_t(rows);
      for (int p = 0; p < request.rows; ++p, ++rows) {
        const Choice& one = choices_[i * width + p];
        const size_t from = size_t(one.row) * stride_, to = rows * stride;
        std::copy_n(tokens_.begin() + from, written_, next_tokens_.begin() + to);
        std::copy_n(logps_.begin() + from, written_, next_logps_.begin() + to);
        next_tokens_[to + written_] = one.token;
        next_logps_[to + written_] = one.own;
        live_[rows] = one.score;
        parent[rows] = one.row;
        token[rows] = one.token;
      }
      if (kept != i) requests_[kept] = std::move(request);
      ++kept;
    }
    requests_.resize(kept);
    tokens_.swap(next_tokens_);
    logps_.swap(next_logps_);
    stride_ = stride;
    ++written_;
    return int64_t(rows);
  }

  const BeamOptions options_;
  const std::vector<uint8_t> kinds_;
  Divisors divisors_{};
  std::vector<Request> requests_;  // active
  std::vector<double> live_;       // (rows) scores of the active texts, not yet divided
  std::vector<int32_t> tokens_, next_tokens_;  // (rows, stride_) what they have written
  std::vector<float> logps_, next_logps_;      // (rows, stride_) the model's own opinion of it
  std::vector<Choice> choices_;    // (requests, K) the next rows, the hopeful ones first
  std::vector<Workspace> workspaces_;  // of each thread
  std::vector<Decided> decided_;
  int64_t written_ = 0;
  int stride_ = 0;
  bool broken_off_ = false;  // memory ran out in the midst of a step
};

// A beam's scores before the first step, and what it is told. The Python side's struct has the same fields.
struct Strider {
  Beam* beam;
  const ScoreBuffer* buffer;
  int64_t begin;           // the first row there that is the beam's
  int64_t rows;            // how many there are; afterwards: how many it goes on with
  const double* divisors;  // what texts that end in the first step are divided by, in the second, …: most + 1
};

// Several steps of several beams in one call: every beam chooses, the engine writes what they chose, and again. Between
// two steps of a small model Python would take as long as a good part of the step, with all threads but one idle. Steps
// until `most` are done, `enough` requests are decided, one of them by an error, or no row is left. Scores of
// the last step go to `buffer`, beam by beam. Returns how many steps were done, −1 where a choice makes no sense.
inline int64_t stride(Engine& engine, Strider* beams, int64_t count, int64_t most, int64_t enough, ScoreBuffer buffer) {
  std::vector<int64_t> parent, token;
  for (int64_t done = 0; done < most; ++done) {
    int64_t rows = 0, offset = 0, decided = 0;
    bool failed = false;
    for (Strider* one = beams; one < beams + count; ++one) {
      parent.resize(std::max(parent.size(), size_t(rows + one->beam->most_rows())));
      token.resize(parent.size());
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
