#include "train/optimizer.h"

#include <cmath>

#include "ops/adamw.h"

namespace carope {

Optimizer::Optimizer(std::span<const Parameter> parameters, const OptimizerConfig& config)
    : config_(config) {
  check<ConfigError>(!parameters.empty(), "there are no parameters to optimise");
  arena_ = Arena::plan(parameters.front().value.device(), [&](Arena& arena) {
    slots_.clear();
    for (const Parameter& parameter : parameters) {
      if (parameter.spec.trainable) {
        slots_.push_back(
            {parameter, arena.take(parameter.spec.shape), arena.take(parameter.spec.shape)});
      }
    }
  });
  arena_.clear();
}

std::vector<NamedTensor> Optimizer::moments() const {
  std::vector<NamedTensor> moments;
  for (const Slot& slot : slots_) {
    moments.push_back({slot.parameter.spec.name + ".first_moment", slot.first_moment});
    moments.push_back({slot.parameter.spec.name + ".second_moment", slot.second_moment});
  }
  return moments;
}

double Optimizer::step(Context& ctx, double learning_rate) {
  double squares = 0.0;
  for (const Slot& slot : slots_) {
    squares += sum_of_squares(ctx, slot.parameter.gradient);
  }
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm)) {
    return norm;
  }
  ++steps_;
  const double scale = config_.clip > 0.0 && norm > config_.clip ? config_.clip / norm : 1.0;
  for (const Slot& slot : slots_) {
    adamw(ctx,
          {.learning_rate = static_cast<float>(learning_rate),
           .beta1 = static_cast<float>(config_.beta1),
           .beta2 = static_cast<float>(config_.beta2),
           .epsilon = static_cast<float>(config_.epsilon),
           .decay = slot.parameter.spec.decay ? static_cast<float>(config_.decay) : 0.0F,
           .gradient_scale = static_cast<float>(scale),
           .step = steps_},
          slot.parameter.value, slot.parameter.gradient, slot.first_moment, slot.second_moment);
  }
  return norm;
}

}  // namespace carope
