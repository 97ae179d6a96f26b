#include "train/gradient_exchange.h"

#include "core/parallel.h"

namespace carope {
namespace {

constexpr std::int64_t kElements = 16384;  // elements a task

void accumulate(const Context& ctx, const Tensor& gradients, bool first, const Tensor& sum) {
  const float* from = gradients.f32();
  auto* to = sum.data<double>();
  parallel_blocks(ctx, sum.size(), kElements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      to[i] = (first ? 0.0 : to[i]) + from[i];
    }
  });
}

void round(const Context& ctx, const Tensor& sum, const Tensor& gradients) {
  const auto* from = sum.data<double>();
  float* to = gradients.f32();
  parallel_blocks(ctx, sum.size(), kElements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      to[i] = static_cast<float>(from[i]);
    }
  });
}

}  // namespace

GradientExchange::GradientExchange(Communicator& ranks, const ParameterMemory& memory,
                                   Device device, Sums sums)
    : ranks_(ranks), memory_(memory), sums_(sums) {
  if (sums == Sums::kExact) {
    check<ConfigError>(device.kind == DeviceKind::kCpu,
                       "exact sums of gradients are made on the CPU only; give --device cpu, or "
                       "leave out --exact-sums");
    arena_ = Arena::plan(device, [&](Arena& arena) {
      exact_.clear();
      for (const Bucket& bucket : memory.buckets()) {
        exact_.push_back(arena.take({bucket.gradients.shape(), DType::kF64}));
      }
    });
  }
}

Tensor GradientExchange::own_part(const Tensor& bucket) const {
  const std::int64_t part = bucket.size() / ranks_.size();
  return bucket.reshape({ranks_.size(), part})
      .slice_rows(ranks_.rank(), ranks_.rank() + 1)
      .reshape({part});
}

void GradientExchange::finished(Context& ctx, std::int64_t block, bool first, bool last) {
  const std::span<const Bucket> buckets = memory_.buckets();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].block != block) {
      continue;
    }
    if (accumulates()) {
      accumulate(ctx, buckets[i].gradients, first, exact_[i]);
    }
    if (last && accumulates()) {
      ranks_.reduce_scatter(ctx, exact_[i], own_part(exact_[i]));
    } else if (last) {
      ranks_.reduce_scatter(ctx, buckets[i].gradients, buckets[i].own_gradients);
    }
  }
}

void GradientExchange::join(Context& ctx) {
  ranks_.join(ctx);
  for (std::size_t i = 0; i < exact_.size(); ++i) {
    round(ctx, own_part(exact_[i]), memory_.buckets()[i].own_gradients);
  }
}

void GradientExchange::share_weights(Context& ctx) {
  for (const Bucket& bucket : memory_.buckets()) {
    ranks_.all_gather(ctx, bucket.own_weights, bucket.weights);
  }
  ranks_.join(ctx);
}

std::vector<Tensor> GradientExchange::whole(Context& ctx, std::span<const Tensor> own) {
  for (std::size_t i = 0; i < own.size(); ++i) {
    copy(ctx, own[i], memory_.own()[i].gradient);
  }
  for (const Bucket& bucket : memory_.buckets()) {
    ranks_.all_gather(ctx, bucket.own_gradients, bucket.gradients);
  }
  ranks_.join(ctx);
  std::vector<Tensor> tensors;
  for (const Parameter& parameter : memory_.parameters()) {
    if (parameter.spec.trainable) {
      tensors.push_back(parameter.gradient);
    }
  }
  return tensors;
}

}  // namespace carope
