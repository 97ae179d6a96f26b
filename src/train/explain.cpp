#include "train/explain.h"

#include "model/gpt.h"
#include "position/registry.h"
#include "train/optimizer.h"

namespace carope {

namespace {

/// What something takes, or that there is no room for it. `bytes` makes it.
template <class Bytes>
std::string taken(const Bytes& bytes) {
  constexpr double kMiB = 1 << 20;
  try {
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes()) / kMiB);
  } catch (const OutOfMemory&) {
    return "does not fit";
  }
}

}  // namespace

std::string explain_training(const Context& ctx, const RunConfig& config) {
  Pass pass{.batch = config.train.micro_batch,
            .length = config.model.length,
            .purpose = ctx.recompute() ? Purpose::kRecomputing : Purpose::kTraining,
            .documents = config.data.documents};
  const Encoding encoding =
      make_encoding(config.model.encoding, config.model.shape(), config.model.encoding_options);
  const auto plan = [&] {
    return make_plan(config.model, encoding, ctx.device(), ctx.compute(), pass);
  };
  std::string text = fmt::format("encoding    {}\n{}", config.model.encoding, describe(plan()));
  text += "memory      parameters and gradients: " +
          taken([&] { return Gpt(config.model, ctx.device(), ctx.compute()).bytes(); });
  text += "\n            optimizer: " + taken([&] {
            const Gpt model(config.model, ctx.device(), ctx.compute());
            return Optimizer(model.memory().own(), config.optimizer, ctx.device()).bytes();
          });
  const Block block(config.model, encoding, ctx.device());
  for (const Purpose purpose : {Purpose::kTraining, Purpose::kRecomputing, Purpose::kEvaluation}) {
    pass.purpose = purpose;
    text += fmt::format("\n            activations in {}: {}", to_string(purpose),
                        taken([&] { return Activations(config.model, block, plan()).bytes(); }));
  }
  return text + "\n";
}

}  // namespace carope
