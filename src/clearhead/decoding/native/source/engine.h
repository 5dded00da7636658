// Texts that are being written: which slots each holds, new ones read in, all of them carried one token further.
#pragma once

#include <iterator>
#include <map>
#include <memory>

#include "best.h"
#include "forward.h"

namespace clearhead {

struct Text {
  Slots slots;                    // of its tokens so far
  std::shared_ptr<Slots> source;  // of what it reads; all texts of a request have the same
};

// Where scores go: logits (rows, stride), the softmax's shares (rows, panels, 2), logsumexp (rows); and, where not
// nullptr, the last hidden states (rows, width) and the last cross-attention (rows, attention_stride).
struct ScoreBuffer {
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
        store_(model.decoder_layers, model.groups * model.key_dim, model.stored_values()),
        team_(threads),
        small_(decoder_bytes(model) <= SMALL) {}

  void set_tables(const Tables& tables) { tables_ = tables; }
  Team& team() { return team_; }
  const Model& model() const { return model_; }
  const Kernels& kernels() const { return *model_.output->kernels; }
  int64_t count() const { return int64_t(texts_.size()); }
  int64_t slots_in_use() const { return int64_t(store_.in_use()); }
  int64_t bytes() const { return int64_t(store_.bytes()); }

  // Tokens of the longest text.
  int64_t longest() const {
    int32_t most = 0;
    for (const Text& text : texts_) most = std::max(most, text.slots.size());
    return most;
  }

  // Tokens of the longest source that is being read.
  int64_t longest_source() const {
    int32_t most = 0;
    for (const Text& text : texts_) most = std::max(most, text.source->size());
    return most;
  }

  // The scores of one row of a buffer.
  Scored scored(const ScoreBuffer& buffer, int64_t row) const {
    const int panels = model_.output->panels;
    return {buffer.logits + row * buffer.stride, buffer.peaks + row * panels * 2, buffer.norms[row],
            model_.vocabulary, panels, &kernels()};
  }

  // New requests, `ids` one after another; `start` is what a target begins with. False, and nothing is done, where
  // a number makes no sense. Where memory runs out, the rows stay those that were there.
  bool admit(const int64_t* ids, const int64_t* lengths, int64_t fresh, int32_t start, ScoreBuffer buffer) {
    if (!readable(ids, lengths, fresh, start)) return false;
    const size_t before = texts_.size();
    try {
      grow_to(texts_, before + fresh);
      read(ids, lengths, fresh, buffer);
      if (model_.has_source && fresh) {
        tokens_.clear();
        tokens_.reserve(fresh);
        for (size_t i = before; i < texts_.size(); ++i) extend(texts_[i].slots, *texts_[i].source, start);
        write(buffer);
      }
    } catch (...) {
      texts_.resize(before);
      throw;
    }
    return true;
  }

  // Row i goes on from old row parent[i], which writes token[i]. False, and nothing is done, where a number is
  // none of a row's or of a token's. Where memory runs out, the rows stay what they were.
  bool step(const int64_t* parent, const int64_t* token, int64_t rows, ScoreBuffer buffer) {
    if (!writable(parent, token, rows)) return false;
    int64_t grown = 0;  // new rows that have their slot
    try {
      children_.assign(texts_.size(), 0);
      for (int64_t i = 0; i < rows; ++i) ++children_[parent[i]];
      next_.clear();
      next_.resize(rows);
      tokens_.clear();
      tokens_.reserve(rows);
      for (; grown < rows; ++grown) grow(next_[grown], parent[grown], int32_t(token[grown]));
      if (rows) write(buffer);
    } catch (...) {
      while (grown--)
        if (next_[grown].slots.empty()) texts_[parent[grown]].slots.shorten();
      next_.clear();
      throw;
    }
    go_on(parent, rows);
    return true;
  }

  // Rows begin..end−1 leave; the others keep their order. Keys and values stay where they are until the rows are joined
  // again or dropped. Returns their number, by which they are called then; −1: there are no such rows. Where memory
  // runs out, nothing has changed.
  int64_t take(int64_t begin, int64_t end) {
    if (begin < 0 || end < begin || end > count()) return -1;
    std::vector<Text> leaving;
    leaving.reserve(end - begin);
    taken_[last_taken_ + 1].swap(leaving);
    std::move(texts_.begin() + begin, texts_.begin() + end, std::back_inserter(taken_[last_taken_ + 1]));
    texts_.erase(texts_.begin() + begin, texts_.begin() + end);
    return ++last_taken_;
  }

  // They come back, behind all others. False: there are none of that number.
  bool join(int64_t number) {
    const auto found = taken_.find(number);
    if (found == taken_.end()) return false;
    grow_to(texts_, texts_.size() + found->second.size());
    std::move(found->second.begin(), found->second.end(), std::back_inserter(texts_));
    taken_.erase(found);
    return true;
  }

  // They are forgotten, and their memory is used again; needs none itself.
  void drop(int64_t number) { taken_.erase(number); }

 private:
  static constexpr int64_t PORTION = 384;  // tokens read at a time
  static constexpr int64_t MOST = int64_t(1) << 28;  // rows, and tokens of a text: counts are 32 bits wide
  static constexpr size_t SMALL = size_t(8) << 20;  // bytes of weights that several threads may read side by side

  ScoreBuffer at(ScoreBuffer buffer, int64_t row) const {
    buffer.logits += row * buffer.stride;
    buffer.peaks += row * model_.output->panels * 2;
    buffer.norms += row;
    if (buffer.hidden) buffer.hidden += row * model_.width;
    if (buffer.attention) buffer.attention += row * buffer.attention_stride;
    return buffer;
  }

  bool readable(const int64_t* ids, const int64_t* lengths, int64_t fresh, int32_t start) const {
    const int64_t longest = std::min(tables_.capacity, MOST), vocabulary = model_.vocabulary;
    const int64_t known = model_.has_source ? model_.source_vocabulary : vocabulary;
    if (fresh < 0 || fresh > MOST - count() || start < 0 || start >= vocabulary) return false;
    for (int64_t i = 0; i < fresh; ++i) {
      if (lengths[i] < 1 || lengths[i] > longest) return false;
      for (int64_t t = 0; t < lengths[i]; ++t, ++ids)
        if (*ids < 0 || *ids >= known) return false;
    }
    return true;
  }

  bool writable(const int64_t* parent, const int64_t* token, int64_t rows) const {
    if (rows < 0 || rows > MOST) return false;
    const int64_t longest = std::min(tables_.capacity, MOST);
    for (int64_t i = 0; i < rows; ++i) {
      if (parent[i] < 0 || parent[i] >= count() || token[i] < 0 || token[i] >= model_.vocabulary) return false;
      if (texts_[parent[i]].slots.size() >= longest) return false;
    }
    return true;
  }

  void read(const int64_t* ids, const int64_t* lengths, int64_t fresh, ScoreBuffer buffer) {
    for (int64_t first = 0; first < fresh;) {  // in portions that keep the activations in the cache
      int64_t last = first, size = 0;
      while (last < fresh && (last == first || size + lengths[last] <= PORTION)) size += lengths[last++];
      read_portion(ids, lengths + first, last - first, at(buffer, first));
      ids += size;
      first = last;
    }
  }

  // A new row with its next token. The last child of a text takes the text's list itself, when all is done: until
  // then the list is longer where it stands, and the child's own is empty.
  void grow(Text& child, int64_t parent, int32_t id) {
    Text& from = texts_[parent];
    child.source = from.source;
    const bool last = children_[parent] == 1;
    if (!last) child.slots.copy(from.slots);
    extend(last ? from.slots : child.slots, *from.source, id);
    --children_[parent];
  }

  // The new rows become the rows; what nobody goes on from is given back with the old ones.
  void go_on(const int64_t* parent, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i)
      if (next_[i].slots.empty()) next_[i].slots.swap(texts_[parent[i]].slots);
    texts_.swap(next_);
    next_.clear();
  }

  // One more token of a text, to be written in the next pass; `tokens_` has space for it.
  void extend(Slots& slots, const Slots& source, int32_t id) {
    const int32_t position = slots.size();
    slots.extend(1);
    tokens_.push_back({id, position, slots[position], slots.data(), position + 1, source.data(), source.size()});
  }

  void write(ScoreBuffer buffer) {
    choose_all();
    const int parts = parts_of(tokens_.size());
    parts > 1 ? pass_in_parts(parts, buffer) : pass(buffer);
  }

  void choose_all() {
    chosen_.resize(tokens_.size());
    for (size_t i = 0; i < chosen_.size(); ++i) chosen_[i] = int(i);
  }

  // New texts: a source goes through the encoder, and scores come with the first token; a prompt gives its own.
  void read_portion(const int64_t* ids, const int64_t* lengths, int64_t count, ScoreBuffer buffer) {
    const bool source = model_.has_source;
    tokens_.clear();
    chosen_.clear();
    for (int64_t i = 0; i < count; ++i) {
      texts_.push_back({Slots(store_), source ? std::make_shared<Slots>(store_) : nothing_});
      Slots& slots = source ? *texts_.back().source : texts_.back().slots;
      slots.extend(lengths[i]);
      for (int32_t t = 0; t < lengths[i]; ++t)
        tokens_.push_back({int32_t(*ids++), t, slots[t], slots.data(), source ? slots.size() : t + 1, nullptr, 0});
      chosen_.push_back(int(tokens_.size()) - 1);
    }
    if (source) return keep_sources();
    if (int64_t(tokens_.size()) > PORTION) read_ahead();
    pass(buffer);
  }

  void keep_sources() {
    choose_all();
    Forward forward(model_, store_, team_, scratch_, tokens_.data(), tokens_.size(), tables_);
    team_.run([&](int self) {
      forward.embed(true);
      forward.layers(true, self);
      forward.last(model_.encoder_norm, chosen_, 1.0f, nullptr);
      forward.keep_source();
    });
  }

  // A long prompt, which comes alone: all but its last portion goes through the layers piece by piece, so that
  // memory for activations stays bounded. Every token sees the same keys as if all came at once.
  void read_ahead() {
    size_t begin = 0;
    for (; tokens_.size() - begin > size_t(PORTION); begin += PORTION) {
      Forward forward(model_, store_, team_, scratch_, tokens_.data() + begin, PORTION, tables_);
      team_.run([&](int self) {
        forward.embed(false);
        forward.layers(false, self);
      });
    }
    tokens_.erase(tokens_.begin(), tokens_.begin() + begin);
    chosen_.assign(1, int(tokens_.size()) - 1);
  }

  // tokens_ through the decoder, by all threads together; scores of the chosen ones.
  void pass(ScoreBuffer buffer) {
    Forward forward(model_, store_, team_, scratch_, tokens_.data(), tokens_.size(), tables_);
    forward.watch(buffer.attention, buffer.attention_stride);
    team_.run([&](int self) { decode(forward, self, chosen_, buffer); });
  }

  // The same for one token of each row, but every thread takes a part of the rows through all layers by itself:
  // nobody waits for anybody, and activations stay in one core's cache. Each part reads all weights, which pays
  // where they fit into the caches and there are rows enough.
  void pass_in_parts(int parts, ScoreBuffer buffer) {
    const size_t count = tokens_.size();
    scratches_.resize(std::max(scratches_.size(), size_t(parts)));
    std::vector<Forward> forwards;
    std::vector<std::vector<int>> chosen(parts);
    for (int p = 0; p < parts; ++p) {
      const size_t begin = count * p / parts, end = count * (p + 1) / parts;
      forwards.emplace_back(model_, store_, alone_, scratches_[p], tokens_.data() + begin, end - begin, tables_);
      const ScoreBuffer own = at(buffer, begin);
      forwards[p].watch(own.attention, own.attention_stride);
      chosen[p].assign(chosen_.begin(), chosen_.begin() + (end - begin));
    }
    team_.run([&](int) {
      team_.share(parts, [&](int p) { decode(forwards[p], 0, chosen[p], at(buffer, count * p / parts)); });
    });
  }

  void decode(Forward& forward, int self, const std::vector<int>& chosen, ScoreBuffer buffer) {
    const int rows = int(chosen.size()), panels = model_.output->panels;
    forward.embed(false);
    forward.layers(false, self);
    forward.last(model_.decoder_norm, chosen, model_.output_factor, buffer.hidden);
    forward.scores(rows, buffer.logits, buffer.stride, buffer.peaks);
    forward.team().each(rows, [&](int i) {
      buffer.norms[i] = kernels().log_sum(buffer.peaks + size_t(i) * panels * 2, panels);
    });
  }

  // In how many parts rows are dealt out to the threads; 1: not at all.
  int parts_of(size_t rows) const {
    return small_ && rows >= size_t(team_.count()) * kernels().rows * 2 ? team_.count() : 1;
  }

  const Model model_;
  Store store_;
  Team team_, alone_{1};
  const bool small_;
  Tables tables_{};
  Scratch scratch_;
  std::vector<Scratch> scratches_;  // of each part
  std::vector<Text> texts_;
  std::vector<Text> next_;         // the rows that a step makes
  std::map<int64_t, std::vector<Text>> taken_;  // by their numbers
  int64_t last_taken_ = 0;
  std::vector<int32_t> children_;  // of each text that are still to be made
  const std::shared_ptr<Slots> nothing_ = std::make_shared<Slots>();  // what a prompt reads besides itself
  std::vector<Token> tokens_;
  std::vector<int> chosen_;
};

}  // namespace clearhead
