#include "train/optimizer.h"

#include <cmath>

namespace carope {

namespace {

Device device_of(std::span<const Parameter> parameters) {
  check<ConfigError>(!parameters.empty(), "there are no parameters to optimise");
  return parameters.front().value.device();
}

}  // namespace

Optimizer::Optimizer(std::span<const Parameter> parameters, const OptimizerConfig& config)
    : Optimizer(parameters, config, device_of(parameters)) {}

Optimizer::Optimizer(std::span<const Parameter> parts, const OptimizerConfig& config, Device device)
    : config_(config) {
  arena_ = Arena::plan(device, [&](Arena& arena) {
    slots_.clear();
    for (const Parameter& parameter : parts) {
      if (parameter.spec.trainable) {
        const Shape& shape = parameter.spec.shape;
        slots_.push_back({.value = parameter.value,
                          .gradient = parameter.gradient,
                          .first_moment = arena.take(shape),
                          .second_moment = arena.take(shape),
                          .rounded = parameter.rounded,
                          .decay = static_cast<float>(parameter.spec.decay ? config.decay : 0.0)});
      }
    }
    squares_ = arena.take({{1}, DType::kF64});
  });
  arena_.clear();
}

std::vector<Tensor> Optimizer::first_moments() const {
  std::vector<Tensor> moments;
  for (const AdamwSlot& slot : slots_) {
    moments.push_back(slot.first_moment);
  }
  return moments;
}

std::vector<Tensor> Optimizer::second_moments() const {
  std::vector<Tensor> moments;
  for (const AdamwSlot& slot : slots_) {
    moments.push_back(slot.second_moment);
  }
  return moments;
}

double Optimizer::step(Context& ctx, double learning_rate, Communicator* ranks) {
  update(ctx, learning_rate, ranks);
  return finish();
}

void Optimizer::update(Context& ctx, double learning_rate, Communicator* ranks) {
  gradient_squares(ctx, slots_, squares_);
  if (ranks != nullptr) {
    ranks->all_reduce(ctx, squares_);
    ranks->join(ctx);
  }
  adamw(ctx,
        {.learning_rate = static_cast<float>(learning_rate),
         .beta1 = static_cast<float>(config_.beta1),
         .beta2 = static_cast<float>(config_.beta2),
         .epsilon = static_cast<float>(config_.epsilon),
         .clip = config_.clip,
         .step = steps_ + 1},
        slots_, squares_);
}

double Optimizer::finish() {
  double squares = 0.0;
  copy_to_host(&squares, squares_.raw(), sizeof(squares), squares_.device());
  steps_ += std::isfinite(squares) ? 1 : 0;
  return std::sqrt(squares);
}

}  // namespace carope
