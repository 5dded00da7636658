// One pass of tokens through a stack of layers, by all threads of a team together.
//
// Tokens of all texts lie one after another, without padding. Keys and values go into the store at once, and
// attention looks them up there by slot: an encoder's, a prompt's, a step's and the source's alike.
#pragma once

#include <algorithm>
#include <cstring>

#include "model.h"
#include "slots.h"
#include "team.h"

namespace clearhead {

// One token of a pass.
struct Token {
  int32_t id, position, slot;
  const int32_t* seen;    // slots that self-attention looks at, in order of position
  int32_t seen_count;
  const int32_t* source;  // slots of the source, for cross-attention
  int32_t source_count;
};

// Rows of floats with their quantised form; rows are a line further apart than they are wide, against aliasing.
struct Rows {
  Buffer<float> floats;
  Buffer<uint8_t> bytes;
  Buffer<float> scale;
  Buffer<int32_t> zero;
  int width = 0, stride = 0, byte_stride = 0;

  void shape(const Kernels& k, size_t rows, int columns, bool quantised) {
    width = columns;
    stride = up_to(columns, 16) + 16;
    byte_stride = up_to(k.quantised_bytes(columns), 64) + 64;
    floats.reserve(rows * stride);
    if (!quantised) return;
    bytes.reserve(rows * byte_stride);
    scale.reserve(rows);
    zero.reserve(rows);
  }
  float* row(int i) const { return floats.get() + size_t(i) * stride; }
  Input input() const { return {floats.get(), stride, bytes.get(), byte_stride, scale.get(), zero.get()}; }
};

constexpr float LATENT_EPS = 1e-6f;  // of the norms of latents, whatever the others have

struct Scratch {
  Rows x, y, wide, mixed, inner;  // residual stream; its norm; q, k, v; attention's result; feed-forward
  Rows low;                       // latents of compressed queries, and k and v beside them
  std::vector<Buffer<float>> scores;        // of each thread
  std::vector<std::vector<const float*>> keys;
};

class Forward {
 public:
  // Makes room for a pass over these tokens, which must outlive it. Called by one thread.
  Forward(const Model& model, Store& store, Team& team, Scratch& scratch, const Token* tokens, size_t count,
          const Tables& tables)
      : model_(model), store_(store), team_(team), s_(scratch), k_(*model.output->kernels),
        int8_(model.output->kind == INT8), tokens_(tokens), count_(int(count)), tables_(tables) {
    const Model& m = model_;
    const int keys = m.groups * m.key_dim + m.stored_values();
    s_.x.shape(k_, count_, m.width, int8_);
    s_.y.shape(k_, count_, m.width, int8_);
    s_.wide.shape(k_, count_, m.heads * m.key_dim + keys, false);
    if (m.query_latent) s_.low.shape(k_, count_, m.query_latent + keys, int8_);
    s_.mixed.shape(k_, count_, m.heads * m.value_dim, int8_);
    s_.inner.shape(k_, count_, m.inner * (m.gated ? 2 : 1), int8_);
    int longest = 1;
    for (int i = 0; i < count_; ++i) longest = std::max({longest, tokens[i].seen_count, tokens[i].source_count});
    s_.scores.resize(team_.count());
    s_.keys.resize(team_.count());
    for (auto& scores : s_.scores) scores.reserve(up_to(longest, MOST_LANES) + MOST_LANES);
    for (auto& keys : s_.keys) keys.resize(longest);
  }

  // Write the last layer's cross-attention, the mean over heads, to (tokens, stride). Before `run`.
  void watch(float* attention, int64_t stride) {
    watched_ = attention;
    watched_stride_ = stride;
  }

  Team& team() { return team_; }

  // The rest is called by every thread of the team.

  void embed(bool source) {
    const Model& m = model_;
    const float* table = source ? m.source_table : m.target_table;
    const PackedMatrix* rows = source ? m.source_rows : m.target_rows;
    const int64_t offset = source ? m.source_offset : m.target_offset;
    const float* places = source ? tables_.source : tables_.target;
    const Norm& norm = source ? m.source_norm : m.target_norm;
    team_.each(count_, [&](int i) {
      const float* place = places ? places + size_t(tokens_[i].position) * m.width : nullptr;
      float* x = s_.x.row(i);
      const size_t first = size_t(tokens_[i].id) * m.width;
      if (rows) k_.unpack_column(*rows, tokens_[i].id, x);
      else if (offset) read_numbers(int(m.file), offset + int64_t(first * sizeof(float)), x, m.width);
      const float* from = rows || offset ? x : table + first;
      for (int j = 0; j < m.width; ++j) x[j] = from[j] * m.embedding_factor + (place ? place[j] : 0.0f);
      if (norm.weight) k_.normalise(norm, m.rms, m.eps, x, x, m.width);
      if (int8_ && !m.norm_first) quantise_row(s_.x, i);
    });
  }

  void layers(bool source, int self) {
    const Model& m = model_;
    const Layer* stack = source ? m.encoder : m.decoder;
    const int depth = source ? m.encoder_layers : m.decoder_layers;
    const float* bias = source ? tables_.encoder_bias : tables_.decoder_bias;
    for (int i = 0; i < depth; ++i) {
      const Layer& layer = stack[i];
      const int place = source ? 0 : i;  // an encoder's keys are needed within one layer only
      project(layer);
      keep_keys(place, layer.latent_norm);
      attend_all(place, self, bias, false);
      add(*layer.attention_output, s_.mixed, layer.attention_norm);
      if (layer.cross_query && !source) {
        multiply(*layer.cross_query, normed(layer.cross_norm), wide());
        attend_all(place, self, nullptr, true);
        add(*layer.cross_output, s_.mixed, layer.cross_norm);
      }
      feedforward(layer);
    }
  }

  // Keys and values of the source for every layer of the decoder, from the encoder's output in y.
  void keep_source() {
    const Model& m = model_;
    const int keys = m.groups * m.key_dim, values = m.groups * m.value_dim;
    for (int layer = 0; layer < m.decoder_layers; ++layer) {
      multiply(*m.decoder[layer].cross_key_value, s_.y, wide());
      team_.each(count_, [&](int i) {
        float* to = store_.at(layer, tokens_[i].slot);
        std::memcpy(to, s_.wide.row(i), sizeof(float) * keys);
        std::memcpy(to + store_.value_offset(), s_.wide.row(i) + keys, sizeof(float) * values);
      });
    }
  }

  // y = the last norm of chosen rows of x (or x itself), times `factor`; hidden (may be nullptr) without it.
  void last(const Norm& norm, const std::vector<int>& chosen, float factor, float* hidden) {
    const Model& m = model_;
    team_.each(int(chosen.size()), [&](int i) {
      const float* x = s_.x.row(chosen[i]);
      float* y = s_.y.row(i);
      if (norm.weight)
        k_.normalise(norm, m.rms, m.eps, x, y, m.width);
      else
        std::memcpy(y, x, sizeof(float) * m.width);
      if (hidden) std::memcpy(hidden + size_t(i) * m.width, y, sizeof(float) * m.width);
      if (factor != 1.0f)
        for (int j = 0; j < m.width; ++j) y[j] *= factor;
      if (int8_) quantise_row(s_.y, i);
    });
  }

  // Scores of `rows` rows of y over the vocabulary, and each panel's share of the softmax.
  void scores(int rows, float* logits, int64_t stride, float* peaks) {
    const Output out{logits, stride, NO_ACTIVATION, false, peaks};
    multiply(*model_.output, s_.y, out, rows);
  }

 private:
  static Output into(const Rows& rows) { return {rows.floats.get(), rows.stride, NO_ACTIVATION, false, nullptr}; }
  Output wide() const { return into(s_.wide); }

  void quantise_row(Rows& rows, int i) { quantise_row(rows, i, rows.width); }
  void quantise_row(Rows& rows, int i, int columns) {
    k_.quantise(rows.row(i), columns, rows.bytes.get() + size_t(i) * rows.byte_stride, &rows.scale[i], &rows.zero[i]);
  }

  // What a sub-layer reads: pre-norm, the norm of the stream; post-norm, the stream itself.
  const Rows& normed(const Norm& norm) {
    const Model& m = model_;
    if (!m.norm_first) return s_.x;
    team_.each(count_, [&](int i) {
      k_.normalise(norm, m.rms, m.eps, s_.x.row(i), s_.y.row(i), m.width);
      if (int8_) quantise_row(s_.y, i);
    });
    return s_.y;
  }

  void multiply(const PackedMatrix& w, const Rows& rows, Output out, int count = -1) {
    const int height = count < 0 ? count_ : count, threads = team_.count();
    // Many rows and few panels: deal out rows as well. Otherwise several panels at a time.
    int cuts = std::min(std::max(1, 4 * threads / w.panels), (height + 2 * k_.rows - 1) / (2 * k_.rows));
    if (height > 256) cuts = std::max(cuts, (height + 191) / 192);
    const int cut = (height + cuts - 1) / std::max(cuts, 1);
    const int run = cuts > 1 ? 1 : std::max(1, std::min(8, w.panels / (threads * 4)));
    const int runs = (w.panels + run - 1) / run;
    const Input x = rows.input();
    team_.share(runs * cuts, [&](int piece) {
      const int first = piece / cuts * run, begin = piece % cuts * cut, end = std::min(height, begin + cut);
      const int last = std::min(first + run, w.panels) - 1;
      for (int panel = first; panel <= last && begin < end; ++panel)
        k_.product(w, panel, x, begin, end, panel < last, out);
    });
  }

  // x += rows · w, and where the norm comes after: x = norm(x).
  void add(const PackedMatrix& w, Rows& rows, const Norm& norm) {
    const Model& m = model_;
    if (int8_ && &rows != &s_.inner) team_.each(count_, [&](int i) { quantise_row(rows, i); });
    const Output out{s_.x.floats.get(), s_.x.stride, NO_ACTIVATION, true, nullptr};
    multiply(w, rows, out);
    if (m.norm_first) return;
    team_.each(count_, [&](int i) {
      k_.normalise(norm, m.rms, m.eps, s_.x.row(i), s_.x.row(i), m.width);
      if (int8_) quantise_row(s_.x, i);
    });
  }

  void feedforward(const Layer& layer) {
    const Model& m = model_;
    const Output out{s_.inner.floats.get(), s_.inner.stride, m.gated ? NO_ACTIVATION : m.activation, false, nullptr};
    multiply(*layer.inner, normed(layer.feedforward_norm), out);
    if (m.gated || int8_) {
      team_.each(count_, [&](int i) {
        if (m.gated) k_.gate(s_.inner.row(i), m.inner, m.activation);
        if (int8_) quantise_row(s_.inner, i, m.inner);
      });
    }
    add(*layer.outer, s_.inner, layer.feedforward_norm);
  }

  // Queries, keys and values; with compressed queries, these from their normed latents, and the keys stay beside those.
  void project(const Layer& layer) {
    const Model& m = model_;
    const Rows& x = normed(layer.attention_norm);
    if (!m.query_latent) return multiply(*layer.query_key_value, x, wide());
    multiply(*layer.query_key_value, x, into(s_.low));
    team_.each(count_, [&](int i) {
      k_.normalise(layer.query_norm, true, LATENT_EPS, s_.low.row(i), s_.low.row(i), m.query_latent);
      if (int8_) quantise_row(s_.low, i, m.query_latent);
    });
    multiply(*layer.queries, s_.low, wide());
  }

  // New keys (turned) and values go to their slots; queries are turned where they are. A latent is normed on its way.
  void keep_keys(int layer, const Norm& latent_norm) {
    const Model& m = model_;
    const int keys = m.groups * m.key_dim, values = m.stored_values(), queries = m.heads * m.key_dim;
    const int turned = m.rotary_dim, first = m.key_dim - turned;  // the first one that is turned
    team_.each(count_, [&](int i) {
      float* row = s_.wide.row(i);
      const float* fresh = m.query_latent ? s_.low.row(i) + m.query_latent : row + queries;  // keys, then values
      float* to = store_.at(layer, tokens_[i].slot);
      if (tables_.cosine) {
        const size_t place = size_t(tokens_[i].position) * (turned / 2);
        const float *cosine = tables_.cosine + place, *sine = tables_.sine + place;
        for (int h = 0; h < m.heads; ++h) {
          float* q = row + h * m.key_dim + first;
          k_.rotate(q, q, turned, cosine, sine, m.rotary_halves);
        }
        for (int g = 0; g < m.groups; ++g) {
          const float* key = fresh + g * m.key_dim;
          std::memcpy(to + g * m.key_dim, key, sizeof(float) * first);
          k_.rotate(key + first, to + g * m.key_dim + first, turned, cosine, sine, m.rotary_halves);
        }
      } else {
        std::memcpy(to, fresh, sizeof(float) * keys);
      }
      if (m.latent) k_.normalise(latent_norm, true, LATENT_EPS, fresh, to, m.latent);
      std::memcpy(to + store_.value_offset(), fresh + keys, sizeof(float) * values);
    });
  }

  void attend_all(int layer, int self, const float* bias, bool cross) {
    const Model& m = model_;
    const AttentionShape shape{m.heads, m.groups, m.key_dim, m.value_dim, m.scale, m.softcap};
    // Few rows: deal out groups of heads one by one.
    const bool watched = cross && watched_ && layer == m.decoder_layers - 1;
    const int pieces = count_ < 4 * team_.count() && !watched ? m.groups : 1;
    team_.each(count_ * pieces, [&](int piece) {
      const int i = piece / pieces;
      const Token& token = tokens_[i];
      const int32_t* slots = cross ? token.source : token.seen;
      const int count = cross ? token.source_count : token.seen_count;
      const float** keys = s_.keys[self].data();
      for (int t = 0; t < count; ++t) keys[t] = store_.at(layer, slots[t]);
      Sight sight{keys, count, m.latent ? 0 : store_.value_offset(), nullptr, 2 * tables_.capacity - 1};
      if (bias) sight.bias = bias + tables_.capacity - 1 - token.position;
      float* shares = watched ? watched_ + i * watched_stride_ : nullptr;
      if (shares) std::fill(shares, shares + watched_stride_, 0.0f);
      const int begin = pieces == 1 ? 0 : piece % pieces, end = pieces == 1 ? m.groups : begin + 1;
      for (int g = begin; g < end; ++g)
        k_.attend(shape, g, s_.wide.row(i), sight, s_.scores[self].get(), s_.mixed.row(i), shares);
    });
  }

  const Model& model_;
  Store& store_;
  Team& team_;
  Scratch& s_;
  const Kernels& k_;
  const bool int8_;
  const Token* const tokens_;
  const int count_;
  const Tables tables_;
  float* watched_ = nullptr;
  int64_t watched_stride_ = 0;
};

}  // namespace clearhead
