#include "train/explain.h"

#include "model/gpt.h"
#include "train/optimizer.h"

namespace carope {

namespace {

constexpr double kMiB = 1 << 20;

/// What a pass's activations take, or that there is no room for them.
std::string activations_of(const Gpt& model, const Pass& pass) {
  try {
    return fmt::format("{:.1f} MiB", static_cast<double>(model.plan(pass).bytes()) / kMiB);
  } catch (const OutOfMemory&) {
    return "does not fit";
  }
}

}  // namespace

std::string explain_training(const Context& ctx, const RunConfig& config) {
  const Gpt model(config.model, ctx.device(), ctx.compute());
  const Optimizer optimizer(model.memory().own(), config.optimizer, ctx.device());
  Pass pass{.batch = config.train.micro_batch,
            .length = config.model.length,
            .purpose = ctx.recompute() ? Purpose::kRecomputing : Purpose::kTraining,
            .documents = config.data.documents};
  std::string text = fmt::format(
      "encoding    {}\n{}memory      parameters and gradients {:.1f} MiB, optimizer {:.1f} MiB\n",
      config.model.encoding,
      describe(make_plan(config.model, model.encoding(), ctx.device(), ctx.compute(), pass)),
      static_cast<double>(model.bytes()) / kMiB, static_cast<double>(optimizer.bytes()) / kMiB);
  for (const Purpose purpose : {Purpose::kTraining, Purpose::kRecomputing, Purpose::kEvaluation}) {
    pass.purpose = purpose;
    text += fmt::format("            activations in {}: {}\n", to_string(purpose),
                        activations_of(model, pass));
  }
  return text;
}

}  // namespace carope
