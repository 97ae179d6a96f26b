#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/random.h"
#include "model/gpt.h"

namespace carope::test {

/// A batch of random tokens, each row's targets being its next tokens.
struct RandomBatch {
  RandomBatch(std::int64_t batch, std::int64_t length, std::int64_t vocabulary,
              std::uint64_t seed = 1)
      : rows(batch), columns(length) {
    const Philox random(seed, 99);
    for (std::int64_t i = 0; i < batch * length; ++i) {
      const auto index = static_cast<std::uint64_t>(i);
      const auto size = static_cast<std::uint32_t>(vocabulary);
      tokens.push_back(static_cast<std::int32_t>(random.below(size, index)));
      targets.push_back(static_cast<std::int32_t>(random.below(size, index + 1)));
    }
  }

  /// Declares that documents begin at these tokens, the same in every row. The first must be 0.
  void pack(const std::vector<std::int32_t>& starts) {
    for (std::int64_t b = 0; b < rows; ++b) {
      std::size_t document = 0;
      for (std::int32_t t = 0; t < columns; ++t) {
        document += document + 1 < starts.size() && starts[document + 1] == t ? 1 : 0;
        document_start.push_back(starts[document]);
      }
    }
  }

  Batch view() {
    Batch batch{.seq = {.batch = rows, .length = columns},
                .tokens = Tensor::of(tokens, {rows, columns}),
                .targets = Tensor::of(targets, {rows, columns})};
    if (!document_start.empty()) {
      batch.seq.document_start = Tensor::of(document_start, {rows, columns});
    }
    return batch;
  }

  std::int64_t rows, columns;
  std::vector<std::int32_t> tokens, targets, document_start;
};

/// Moves the named parameter away from where initialise() puts it, the same way in every model that
/// has it.
inline void perturb(const Parameter& parameter, double deviation) {
  const Philox random(17, std::hash<std::string>{}(parameter.spec.name));
  for (std::int64_t i = 0; i < parameter.value.size(); ++i) {
    parameter.value.f32()[i] +=
        static_cast<float>(deviation * random.normal(static_cast<std::uint64_t>(i)));
  }
}

/// Moves all parameters, so that gates, gains and biases matter.
inline void perturb(const Gpt& model, double deviation) {
  for (const Parameter& parameter : model.parameters()) {
    perturb(parameter, deviation);
  }
}

}  // namespace carope::test
