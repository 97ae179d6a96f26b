#include "train/explain.h"

#include "model/gpt.h"
#include "train/optimizer.h"

namespace carope {

std::string explain_training(const Context& ctx, const RunConfig& config) {
  const Gpt model(config.model, ctx.device(), ctx.compute());
  const Optimizer optimizer(model.memory().own(), config.optimizer, ctx.device());
  const Activations activations =
      model.plan({.batch = config.train.micro_batch,
                  .length = config.model.length,
                  .purpose = ctx.recompute() ? Purpose::kRecomputing : Purpose::kTraining,
                  .documents = config.data.documents});
  constexpr double kMiB = 1 << 20;
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / kMiB; };
  return fmt::format(
      "encoding    {}\n{}"
      "memory      {:.1f} MiB for parameters and gradients, {:.1f} for the optimizer, {:.1f} for "
      "activations\n",
      config.model.encoding, describe(activations.plan), mib(model.bytes()), mib(optimizer.bytes()),
      mib(activations.bytes()));
}

}  // namespace carope
