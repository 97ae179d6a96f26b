#include "data/recall.h"

#include "core/random.h"

namespace carope {

RecallBatch::RecallBatch(const RecallTask& task, std::int64_t batch, std::int64_t length,
                         std::uint64_t step)
    : batch_(batch), length_(length) {
  check<ConfigError>(1 <= task.shortest && task.shortest <= task.longest,
                     "patterns of {} to {} tokens are not possible", task.shortest, task.longest);
  const Philox random(task.seed, step);
  const auto vocabulary = static_cast<std::uint32_t>(task.vocabulary);
  const auto spread = static_cast<std::uint32_t>(task.longest - task.shortest + 1);
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto row = static_cast<std::uint64_t>(b) << 32;
    const std::int64_t period = task.shortest + random.below(spread, row);
    const auto token_at = [&](std::int64_t t) {
      return static_cast<std::int32_t>(
          random.below(vocabulary, row + 1 + static_cast<std::uint64_t>(t % period)));
    };
    for (std::int64_t t = 0; t < length; ++t) {
      tokens_.push_back(token_at(t));
      targets_.push_back(t + 1 < period ? -1 : token_at(t + 1));
    }
  }
}

}  // namespace carope
