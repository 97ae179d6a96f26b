#include "train/optimizer.h"

#include <cmath>

namespace carope {

Optimizer::Optimizer(std::span<const Parameter> parameters, const OptimizerConfig& config)
    : config_(config) {
  check<ConfigError>(!parameters.empty(), "there are no parameters to optimise");
  arena_ = Arena::plan(parameters.front().value.device(), [&](Arena& arena) {
    slots_.clear();
    names_.clear();
    for (const Parameter& parameter : parameters) {
      if (parameter.spec.trainable) {
        const Shape& shape = parameter.spec.shape;
        slots_.push_back({.value = parameter.value,
                          .gradient = parameter.gradient,
                          .first_moment = arena.take(shape),
                          .second_moment = arena.take(shape),
                          .rounded = parameter.rounded,
                          .decay = static_cast<float>(parameter.spec.decay ? config.decay : 0.0)});
        names_.push_back(parameter.spec.name);
      }
    }
    norm_ = arena.take({{1}, DType::kF64});
  });
  arena_.clear();
}

std::vector<NamedTensor> Optimizer::moments() const {
  std::vector<NamedTensor> moments;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    moments.push_back({names_[i] + ".first_moment", slots_[i].first_moment});
    moments.push_back({names_[i] + ".second_moment", slots_[i].second_moment});
  }
  return moments;
}

double Optimizer::step(Context& ctx, double learning_rate) {
  gradient_norm(ctx, slots_, norm_);
  adamw(ctx,
        {.learning_rate = static_cast<float>(learning_rate),
         .beta1 = static_cast<float>(config_.beta1),
         .beta2 = static_cast<float>(config_.beta2),
         .epsilon = static_cast<float>(config_.epsilon),
         .clip = config_.clip,
         .step = steps_ + 1},
        slots_, norm_);
  double norm = 0.0;
  copy_to_host(&norm, norm_.raw(), sizeof(norm), norm_.device());
  steps_ += std::isfinite(norm) ? 1 : 0;
  return norm;
}

}  // namespace carope
