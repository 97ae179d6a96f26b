#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/options.h"

namespace carope::test {

/// An encoding with options, on sequences with or without packed documents.
struct ModelCase {
  std::string name;
  std::string encoding;
  Options options{};
  bool documents = false;
};

inline void PrintTo(const ModelCase& c, std::ostream* out) { *out << c.name; }

/// Every encoding and option.
inline std::vector<ModelCase> model_cases() {
  using Text = std::string;
  // With two pairs a head, the usual base would start every gate at f = 1/100, where neither the
  // gate nor the rotation does much; this one starts it near 1/3.
  const std::pair<const std::string, OptionValue> base{"base", 10.0};
  const std::pair<const std::string, OptionValue> interleaved{"layout", Text("interleaved")};
  const std::pair<const std::string, OptionValue> embedding{"source", Text("embedding")};
  const std::pair<const std::string, OptionValue> from_1{"exponent_start", std::int64_t{1}};
  const std::pair<const std::string, OptionValue> frozen{"frozen", true};
  return {
      {"carope", "carope", {base}},
      {"carope_documents", "carope", {base}, true},
      {"carope_interleaved", "carope", {base, interleaved}},
      {"carope_exponent_from_1", "carope", {base, from_1}},
      {"carope_embedding", "carope", {base, embedding}},
      {"carope_embedding_documents", "carope", {base, embedding}, true},
      {"carope_embedding_interleaved_exponent_from_1",
       "carope",
       {base, embedding, interleaved, from_1}},
      {"carope_no_bias", "carope", {{"bias", false}, {"weight_deviation", 0.5}}},
      {"carope_frozen", "carope", {base, frozen}},
      {"carope_frozen_embedding", "carope", {base, frozen, embedding}},
      {"rope", "rope"},
      {"rope_documents", "rope", {base}, true},
      {"rope_interleaved", "rope", {base, interleaved}},
      {"rope_fraction", "rope", {base, {"fraction", 0.5}}, true},
      {"rope_rotary_fraction", "rope", {base, {"rotary_fraction", 0.5}}, true},
      {"rope_rotary_fraction_interleaved", "rope", {base, {"rotary_fraction", 0.5}, interleaved}},
      {"rope_linear", "rope", {base, {"scaling", Text("linear")}, {"factor", 3.0}}},
      {"rope_llama3",
       "rope",
       {base, {"scaling", Text("llama3")}, {"factor", 3.0}, {"original_length", std::int64_t{16}}}},
      {"rope_yarn",
       "rope",
       {base, {"scaling", Text("yarn")}, {"factor", 3.0}, {"original_length", std::int64_t{6}}}},
      {"rope_yarn_documents",
       "rope",
       {base, {"scaling", Text("yarn")}, {"factor", 3.0}, {"original_length", std::int64_t{6}}},
       true},
      {"rope_alibi", "rope+alibi", {{"rope.base", 10.0}}, true},
      {"carope_alibi", "carope+alibi", {{"carope.base", 10.0}}, true},
      {"carope_learnable", "learnable+carope", {{"carope.base", 10.0}}},
      {"learnable", "learnable"},
      {"learnable_documents", "learnable", {}, true},
      {"sinusoidal", "sinusoidal"},
      {"sinusoidal_full_scale_documents", "sinusoidal", {{"scale", 1.0}}, true},
      {"none", "none"},
      {"none_documents", "none", {}, true},
      {"alibi", "alibi"},
      {"alibi_documents", "alibi", {}, true},
  };
}

}  // namespace carope::test
