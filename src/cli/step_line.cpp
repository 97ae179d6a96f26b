#include "cli/step_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

#include "core/progress.h"
#include "ops/peak.h"

namespace carope {

StepLine::StepLine(const Trainer& trainer, Context& ctx, std::string name, std::int64_t log_every)
    : name_(name.empty() ? "" : std::move(name) + "  "),
      steps_(trainer.steps()),
      log_every_(log_every),
      flops_per_token_(trainer.model().training_flops_per_token(trainer.config().model.length)),
      peak_(peak_flops(ctx) * trainer.ranks()),
      terminal_(isatty(STDERR_FILENO) != 0) {
  const RunConfig& config = trainer.config();
  say(fmt::format("{} parameters, {}, {} steps of {}",
                  si(static_cast<double>(trainer.model().parameter_count()), ""),
                  config.model.encoding, trainer.steps(),
                  si(static_cast<double>(config.train.batch_tokens), "tokens")));
}

StepLine::~StepLine() {
  if (open_) {
    tell("\n");  // what comes next, an error perhaps, has a line of its own
  }
}

TrainObserver StepLine::observer() {
  return {.step = [this](const StepMetrics& metrics) { step(metrics); },
          .validation =
              [this](const ValidationMetrics& m) {
                say(fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f}", m.step,
                                m.loss, std::exp(m.loss)));
              },
          .checkpoint = [this](const auto& path) { say("saved " + path.string()); }};
}

void StepLine::step(const StepMetrics& m) {
  if (!terminal_ && m.step % log_every_ != 0 && m.step != steps_) {
    return;
  }
  const double left =
      static_cast<double>(steps_ - m.step) * m.seconds / static_cast<double>(m.step);
  std::string line = fmt::format(
      "{}step {}/{}  loss {:.4f}  perplexity {:.2f}  norm {:.2f}  lr {:.2e}  {}/s  MFU {:.0f} %  "
      "{} "
      "left",
      name_, m.step, steps_, m.loss, std::exp(m.loss), m.norm, m.learning_rate,
      si(m.tokens_per_second, "tokens"), 100.0 * m.tokens_per_second * flops_per_token_ / peak_,
      duration(left));
  tell(terminal_ ? "\r" + fit_terminal(std::move(line)) + "\x1b[K" : line + "\n");
  open_ = terminal_;
}

void StepLine::say(const std::string& text) {
  tell(fmt::format("{}{}{}\n", open_ ? "\n" : "", name_, text));
  open_ = false;
}

}  // namespace carope
