// What the two sides of the door must agree about, as text: every struct with its fields, every function with its
// types. The Python side makes the same text from what it believes, and does not use a library that says otherwise.
//
//   interface 1
//   Norm 16 weight:p@0 bias:p@8         struct, bytes, field:type@offset …
//   clearhead_longest() i8 p            function, what it gives, what it takes
//
// Types: p pointer, i4 and i8 whole numbers, f4 and f8 floating-point ones, s16 a struct of 16 bytes, v nothing.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "beam.h"

namespace clearhead {

constexpr int INTERFACE = 1;  // goes up when a struct or function changes its meaning, but not its types

// A request that a beam has decided, and one of its texts.
struct BeamAnswer {
  int64_t number, texts;
  int32_t broken, dead;
};

struct BeamText {
  double score;
  int64_t count;  // tokens, the stop symbol the last of them
  const int32_t* tokens;
  const float* logps;
  int32_t willing;
};

template <class T>
std::string code() {
  if (std::is_void<T>::value) return "v";
  if (std::is_pointer<T>::value) return "p";
  const char kind = std::is_class<T>::value ? 's' : std::is_floating_point<T>::value ? 'f' : 'i';
  return kind + std::to_string(sizeof(std::conditional_t<std::is_void<T>::value, char, T>));
}

// How many fields a plain struct has: as many as can be given in braces.
struct Anything {
  template <class T>
  operator T() const;
};
template <class T, class Numbers, class = void>
struct Takes : std::false_type {};
template <class T, size_t... I>
struct Takes<T, std::index_sequence<I...>, std::void_t<decltype(T{(void(I), Anything{})...})>> : std::true_type {};
template <class T, size_t N = 0>
constexpr size_t field_count() {
  if constexpr (Takes<T, std::make_index_sequence<N + 1>>::value)
    return field_count<T, N + 1>();
  else
    return N;
}

struct Field {
  const char* name;
  size_t offset;
  std::string (*type)();
};

template <size_t N>
std::string layout(const char* name, size_t size, const Field (&fields)[N]) {
  std::string text = name + (" " + std::to_string(size));
  for (const Field& one : fields)
    text += std::string(" ") + one.name + ":" + one.type() + "@" + std::to_string(one.offset);
  return text + "\n";
}

template <class Result, class... Given>
std::string signature(const char* name, Result (*)(Given...)) {
  std::string text = name + ("() " + code<Result>());
  ((text += " " + code<Given>()), ...);
  return text + "\n";
}

#define FIELD(name) Field{#name, offsetof(Of, name), code<decltype(Of::name)>}
#define STRUCT(type, ...)                                                                                      \
  [] {                                                                                                         \
    using Of = type;                                                                                           \
    const Field fields[] = {__VA_ARGS__};                                                                      \
    static_assert(sizeof(fields) / sizeof(Field) == field_count<Of>(), "a field of " #type " is not listed");  \
    return layout(#type, sizeof(Of), fields);                                                                  \
  }()
#define FUNCTION(name) signature("clearhead_" #name, clearhead_##name)

inline std::string structs() {
  return STRUCT(Norm, FIELD(weight), FIELD(bias)) +
         STRUCT(Layer, FIELD(query_key_value), FIELD(queries), FIELD(attention_output), FIELD(cross_query),
                FIELD(cross_key_value), FIELD(cross_output), FIELD(inner), FIELD(outer), FIELD(attention_norm), FIELD(cross_norm),
                FIELD(feedforward_norm), FIELD(latent_norm), FIELD(query_norm)) +
         STRUCT(Model, FIELD(width), FIELD(vocabulary), FIELD(source_vocabulary), FIELD(encoder_layers),
                FIELD(decoder_layers), FIELD(heads), FIELD(groups), FIELD(key_dim), FIELD(value_dim), FIELD(inner),
                FIELD(gated), FIELD(activation), FIELD(rms), FIELD(norm_first), FIELD(rotary_halves),
                FIELD(has_source), FIELD(latent), FIELD(rotary_dim), FIELD(query_latent), FIELD(eps), FIELD(scale),
                FIELD(softcap), FIELD(embedding_factor),
                FIELD(output_factor), FIELD(source_table), FIELD(target_table), FIELD(source_norm),
                FIELD(target_norm), FIELD(encoder_norm), FIELD(decoder_norm), FIELD(encoder), FIELD(decoder),
                FIELD(output), FIELD(source_rows), FIELD(target_rows), FIELD(file), FIELD(source_offset),
                FIELD(target_offset)) +
         STRUCT(Tables, FIELD(capacity), FIELD(source), FIELD(target), FIELD(cosine), FIELD(sine),
                FIELD(encoder_bias), FIELD(decoder_bias)) +
         STRUCT(ScoreBuffer, FIELD(logits), FIELD(stride), FIELD(peaks), FIELD(norms), FIELD(hidden), FIELD(attention),
                FIELD(attention_stride)) +
         STRUCT(BeamOptions, FIELD(width), FIELD(kept), FIELD(candidates), FIELD(stop), FIELD(stops), FIELD(early),
                FIELD(forced), FIELD(kinds)) +
         STRUCT(BeamAnswer, FIELD(number), FIELD(texts), FIELD(broken), FIELD(dead)) +
         STRUCT(BeamText, FIELD(score), FIELD(count), FIELD(tokens), FIELD(logps), FIELD(willing)) +
         STRUCT(Strider, FIELD(beam), FIELD(buffer), FIELD(begin), FIELD(rows), FIELD(divisors));
}

#undef FIELD
#undef STRUCT

}  // namespace clearhead
