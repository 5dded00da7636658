// Texts under way: which slots each holds, new ones read in, all of them carried one token further.
#pragma once

#include "best.h"
#include "forward.h"

namespace clearhead {

struct Text {
  Slots slots;      // one for each token so far
  int32_t request;  // whose source it reads
};

struct Request {
  Slots source;
  int32_t texts = 0;
};

// Where scores go: logits (rows, stride), the softmax's shares (rows, panels, 2), logsumexp (rows); and, where not
// nullptr, the last hidden states (rows, width) and the last cross-attention (rows, attention_stride).
struct Room {
  float* logits;
  int64_t stride;
  float* peaks;
  float* norms;
  float* hidden;
  float* attention;
  int64_t attention_stride;
};

class Engine {
 public:
  Engine(const Model& model, int threads)
      : model_(model),
        store_(model.decoder_layers, model.groups * model.key_dim, model.groups * model.value_dim),
        team_(threads),
        small_(weights_of(model) <= SMALL) {}

  void set_tables(const Tables& tables) { tables_ = tables; }
  Team& team() { return team_; }
  const Model& model() const { return model_; }
  const Kernels& kernels() const { return *model_.output->kernels; }
  int64_t count() const { return int64_t(texts_.size()); }
  int64_t slots_in_use() const { return int64_t(store_.in_use()); }
  int64_t bytes() const { return int64_t(store_.bytes()); }

  // Tokens of the longest text.
  int64_t longest() const {
    size_t most = 0;
    for (const Text& text : texts_) most = std::max(most, text.slots.size());
    return int64_t(most);
  }

  // Tokens of the longest source that is being read.
  int64_t longest_source() const {
    size_t most = 0;
    for (const Text& text : texts_) most = std::max(most, requests_[text.request].source.size());
    return int64_t(most);
  }

  // The scores of one row of a room.
  Scored scored(const Room& room, int64_t row) const {
    const int panels = model_.output->panels;
    return {room.logits + row * room.stride, room.peaks + row * panels * 2, room.norms[row], model_.vocabulary, panels,
            &kernels()};
  }

  // New requests, `ids` one after another; `start` is what a target begins with.
  void admit(const int64_t* ids, const int64_t* lengths, int64_t fresh, int32_t start, Room room) {
    int64_t first = 0;
    while (first < fresh) {  // in portions that keep the activations in the cache
      int64_t last = first, size = 0;
      while (last < fresh && (last == first || size + lengths[last] <= PORTION)) size += lengths[last++];
      if (model_.has_source)
        read_sources(ids, lengths, first, last);
      else
        read_prompts(ids, lengths, first, last, at(room, first));
      for (int64_t i = first; i < last; ++i) ids += lengths[i];
      first = last;
    }
    if (model_.has_source && fresh) {
      tokens_.clear();
      for (int64_t i = count() - fresh; i < count(); ++i) extend(texts_[i], start);
      write(room);
    }
  }

  // Row i goes on from old row parent[i], which writes token[i]. False, and nothing is done, where a number is
  // none of a row's or of a token's.
  bool step(const int64_t* parent, const int64_t* token, int64_t rows, Room room) {
    for (int64_t i = 0; i < rows; ++i)
      if (parent[i] < 0 || parent[i] >= count() || token[i] < 0 || token[i] >= model_.vocabulary) return false;
    continue_from(parent, rows);
    tokens_.clear();
    tokens_.reserve(rows);
    for (int64_t i = 0; i < rows; ++i) extend(texts_[i], int32_t(token[i]));
    if (rows) write(room);
    return true;
  }

 private:
  static constexpr int64_t PORTION = 384;  // tokens read at a time
  static constexpr size_t SMALL = size_t(8) << 20;  // bytes of weights that several threads may read side by side

  Room at(Room room, int64_t row) const {
    room.logits += row * room.stride;
    room.peaks += row * model_.output->panels * 2;
    room.norms += row;
    if (room.hidden) room.hidden += row * model_.width;
    if (room.attention) room.attention += row * room.attention_stride;
    return room;
  }

  int32_t open_request() {
    if (spare_.empty()) {
      requests_.emplace_back();
      return int32_t(requests_.size()) - 1;
    }
    const int32_t found = spare_.back();
    spare_.pop_back();
    return found;
  }

  void close_text(Text& text) {
    store_.drop(text.slots);
    Request& request = requests_[text.request];
    if (--request.texts == 0) {
      store_.drop(request.source);
      request.source.clear();
      spare_.push_back(text.request);
    }
  }

  // The texts that go on, in their new order; what nobody continues is given back.
  void continue_from(const int64_t* parent, int64_t rows) {
    std::vector<int32_t> children(texts_.size(), 0);
    for (int64_t i = 0; i < rows; ++i) ++children[parent[i]];
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (children[i] > 1) {
        store_.hold(texts_[i].slots, children[i] - 1);
        requests_[texts_[i].request].texts += children[i] - 1;
      }
      if (children[i] == 0) close_text(texts_[i]);
    }
    std::vector<Text> next(rows);
    for (int64_t i = 0; i < rows; ++i) {
      Text& from = texts_[parent[i]];
      next[i].request = from.request;
      if (--children[parent[i]] == 0)
        next[i].slots.swap(from.slots);  // the last child takes the list itself
      else
        next[i].slots = from.slots;
    }
    texts_.swap(next);
  }

  // One more token of a text, to be written in the next pass.
  void extend(Text& text, int32_t id) {
    const int32_t slot = store_.take(), position = int32_t(text.slots.size());
    text.slots.push_back(slot);
    const Slots& source = requests_[text.request].source;
    tokens_.push_back({id, position, slot, text.slots.data(), position + 1, source.data(), int32_t(source.size())});
  }

  void write(Room room) {
    choose_all();
    const int parts = parts_of(tokens_.size());
    if (parts > 1)
      pass_in_parts(parts, room);
    else
      pass(room);
  }

  void choose_all() {
    chosen_.resize(tokens_.size());
    for (size_t i = 0; i < chosen_.size(); ++i) chosen_[i] = int(i);
  }

  void read_sources(const int64_t* ids, const int64_t* lengths, int64_t first, int64_t last) {
    tokens_.clear();
    for (int64_t i = first; i < last; ++i) {
      const int32_t number = open_request();
      Request& request = requests_[number];
      request.texts = 1;
      request.source.resize(lengths[i]);
      for (int32_t& slot : request.source) slot = store_.take();
      for (int32_t t = 0; t < lengths[i]; ++t)
        tokens_.push_back({int32_t(*ids++), t, request.source[t], request.source.data(), int32_t(lengths[i]),
                           nullptr, 0});
      texts_.push_back({{}, number});
    }
    choose_all();
    Forward forward(model_, store_, team_, scratch_);
    forward.prepare(tokens_.data(), tokens_.size(), tables_);
    team_.run([&](int self) {
      forward.embed(true);
      forward.layers(true, self);
      forward.last(model_.encoder_norm, chosen_, 1.0f, nullptr);
      forward.keep_source();
    });
  }

  void read_prompts(const int64_t* ids, const int64_t* lengths, int64_t first, int64_t last, Room room) {
    tokens_.clear();
    chosen_.clear();
    for (int64_t i = first; i < last; ++i) {
      const int32_t number = open_request();
      requests_[number].texts = 1;
      texts_.push_back({{}, number});
      Slots& slots = texts_.back().slots;
      slots.resize(lengths[i]);
      for (int32_t& slot : slots) slot = store_.take();
      for (int32_t t = 0; t < lengths[i]; ++t)
        tokens_.push_back({int32_t(*ids++), t, slots[t], slots.data(), t + 1, nullptr, 0});
      chosen_.push_back(int(tokens_.size()) - 1);
    }
    if (int64_t(tokens_.size()) > PORTION) read_ahead();
    pass(room);
  }

  // A long prompt, which comes alone: all but its last portion goes through the layers piece by piece, so that
  // memory for activations stays bounded. Every token sees the same keys as if all came at once.
  void read_ahead() {
    const std::vector<Token> whole(std::move(tokens_));
    size_t begin = 0;
    for (; whole.size() - begin > size_t(PORTION); begin += PORTION) {
      tokens_.assign(whole.begin() + begin, whole.begin() + begin + PORTION);
      Forward forward(model_, store_, team_, scratch_);
      forward.prepare(tokens_.data(), tokens_.size(), tables_);
      team_.run([&](int self) {
        forward.embed(false);
        forward.layers(false, self);
      });
    }
    tokens_.assign(whole.begin() + begin, whole.end());
    chosen_.assign(1, int(tokens_.size()) - 1);
  }

  // tokens_ through the decoder, by all threads together; scores of the chosen ones.
  void pass(Room room) {
    Forward forward(model_, store_, team_, scratch_);
    forward.prepare(tokens_.data(), tokens_.size(), tables_);
    forward.watch(room.attention, room.attention_stride);
    team_.run([&](int self) { decode(forward, self, chosen_, room); });
  }

  // The same for one token of each row, but every thread takes a part of the rows through all layers by itself:
  // nobody waits for anybody, and activations stay in one core's cache. Each part reads all weights, which pays
  // where they fit into the caches and there are rows enough.
  void pass_in_parts(int parts, Room room) {
    const size_t count = tokens_.size();
    scratches_.resize(std::max(scratches_.size(), size_t(parts)));
    std::vector<Forward> forwards;
    std::vector<std::vector<int>> chosen(parts);
    for (int p = 0; p < parts; ++p) {
      const size_t begin = count * p / parts, end = count * (p + 1) / parts;
      forwards.emplace_back(model_, store_, alone_, scratches_[p]);
      forwards[p].prepare(tokens_.data() + begin, end - begin, tables_);
      if (room.attention) forwards[p].watch(room.attention + begin * room.attention_stride, room.attention_stride);
      chosen[p].assign(chosen_.begin(), chosen_.begin() + (end - begin));
    }
    team_.run([&](int) {
      team_.share(parts, [&](int p) { decode(forwards[p], 0, chosen[p], at(room, count * p / parts)); });
    });
  }

  void decode(Forward& forward, int self, const std::vector<int>& chosen, Room room) {
    const int rows = int(chosen.size()), panels = model_.output->panels;
    forward.embed(false);
    forward.layers(false, self);
    forward.last(model_.decoder_norm, chosen, model_.output_factor, room.hidden);
    forward.scores(rows, room.logits, room.stride, room.peaks);
    forward.team().each(rows, [&](int i) { room.norms[i] = kernels().log_sum(room.peaks + size_t(i) * panels * 2, panels); });
  }

  // In how many parts rows are dealt out to the threads; 1: not at all.
  int parts_of(size_t rows) const {
    if (!small_ || team_.count() == 1 || rows < size_t(team_.count()) * kernels().rows * 2) return 1;
    return team_.count();
  }

  // Bytes that a step reads of a model.
  static size_t weights_of(const Model& model) {
    size_t total = model.output->size();
    for (int i = 0; i < model.decoder_layers; ++i) {
      const Layer& one = model.decoder[i];
      for (const PackedMatrix* matrix : {one.query_key_value, one.attention_output, one.cross_query, one.cross_output,
                                   one.inner, one.outer})
        if (matrix) total += matrix->size();
    }
    return total;
  }

  const Model model_;
  Store store_;
  Team team_, alone_{1};
  const bool small_;
  Tables tables_{};
  Scratch scratch_;
  std::vector<Scratch> scratches_;  // of each part
  std::vector<Text> texts_;
  std::vector<Request> requests_;
  std::vector<int32_t> spare_;
  std::vector<Token> tokens_;
  std::vector<int> chosen_;
};

}  // namespace clearhead
