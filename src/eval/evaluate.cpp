#include "eval/evaluate.h"

namespace carope {

double evaluate(Context& ctx, const Gpt& model, std::int64_t batch, std::int64_t length,
                std::int64_t batches, const std::function<Batch(std::int64_t)>& make) {
  Activations a = model.plan(batch, length, Purpose::kInference);
  double sum = 0.0;
  double count = 0.0;
  for (std::int64_t i = 0; i < batches; ++i) {
    const Batch data = make(i);
    const auto counted = static_cast<double>(count_targets(data.targets));
    sum += counted * model.loss(ctx, data, a);
    count += counted;
  }
  return sum / count;
}

}  // namespace carope
