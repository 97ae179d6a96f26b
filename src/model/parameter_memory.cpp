#include "model/parameter_memory.h"

#include <algorithm>

namespace carope {
namespace {

/// Elements: what makes even bf16 tensors begin where Memory's alignment lets them.
constexpr std::int64_t kAlignment = Memory::kAlignment / 2;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Many ranks take longer to pass something round than to send it: 1 MiB for each, about.
std::size_t usual_bucket_bytes(int ranks) {
  return std::max<std::size_t>(16 << 20, static_cast<std::size_t>(ranks) << 20);
}

Tensor part_of(const Tensor& flat, std::int64_t begin, std::int64_t size) {
  return flat.reshape({flat.size(), 1}).slice_rows(begin, begin + size).reshape({size});
}

}  // namespace

/// What lies where, before there is memory.
struct ParameterMemory::Plan {
  struct PlannedBucket {
    std::int64_t block;
    bool rounds;
    std::int64_t size = 0;
  };
  std::vector<PlannedBucket> buckets{};
  std::vector<std::optional<Place>> places{};  // of each parameter; a frozen one has none

  Plan(const std::vector<ParameterSpec>& specs, const Sharding& sharding) : places(specs.size()) {
    const auto add = [&](std::int64_t block, bool rounds) {
      for (std::size_t i = 0; i < specs.size(); ++i) {
        const ParameterSpec& spec = specs[i];
        // What does not round is little: it waits for the end, all of it in one bucket.
        if (spec.trainable && spec.rounds == rounds && (!rounds || spec.block == block)) {
          std::int64_t& size = buckets.back().size;
          places[i] = {buckets.size() - 1, size};
          size = round_up(size + spec.shape.size(), kAlignment);
        }
      }
    };
    std::int64_t blocks = 0;
    for (const ParameterSpec& spec : specs) {
      blocks = std::max(blocks, spec.block + 1);
    }
    const std::size_t bytes =
        sharding.bucket_bytes > 0 ? sharding.bucket_bytes : usual_bucket_bytes(sharding.ranks);
    const auto full = static_cast<std::int64_t>(bytes / sizeof(float));
    for (std::int64_t block = blocks; block-- > 0;) {
      if (buckets.empty() || buckets.back().size >= full) {
        buckets.push_back({block, true});
      }
      buckets.back().block = block;
      add(block, true);
    }
    buckets.push_back({-1, true});
    add(-1, true);
    buckets.push_back({-1, false});
    add(-1, false);
    for (PlannedBucket& bucket : buckets) {
      bucket.size = round_up(bucket.size, kAlignment * sharding.ranks);
    }
  }
};

ParameterMemory::ParameterMemory(const std::vector<ParameterSpec>& specs, Device device,
                                 DType compute, const Sharding& sharding)
    : sharding_(sharding), parts_(specs.size()) {
  const Plan plan(specs, sharding);
  const bool rounds = compute != DType::kF32;
  for (const ParameterSpec& spec : specs) {
    parameters_.push_back({spec, {}, {}});
  }
  values_ = Arena::plan(device, [&](Arena& arena) {
    values_of_buckets_.clear();
    for (const auto& bucket : plan.buckets) {
      const bool shared = rounds && bucket.rounds;
      values_of_buckets_.push_back(
          arena.take({shared ? bucket.size / sharding.ranks : bucket.size}));
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      parameters_[i].value = plan.places[i] ? Tensor{} : arena.take(specs[i].shape);
    }
  });
  rounded_ = Arena::plan(device, [&](Arena& arena) {
    buckets_.clear();
    for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
      const auto& bucket = plan.buckets[i];
      buckets_.push_back({.block = bucket.block,
                          .gradients = {},
                          .own_gradients = {},
                          .weights = rounds && bucket.rounds ? arena.take({{bucket.size}, compute})
                                                             : values_of_buckets_[i],
                          .own_weights = {}});
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      parameters_[i].rounded = !plan.places[i] && rounds && specs[i].rounds
                                   ? arena.take({specs[i].shape, compute})
                                   : Tensor{};
    }
  });
  gradients_ = Arena::plan(device, [&](Arena& arena) {
    for (Bucket& bucket : buckets_) {
      bucket.gradients = arena.take({bucket.weights.size()});
    }
  });
  // What lies between parameters is exchanged with them.
  values_.clear();
  rounded_.clear();
  gradients_.clear();
  for (Bucket& bucket : buckets_) {
    const std::int64_t part = bucket.gradients.size() / sharding.ranks;
    bucket.own_gradients = part_of(bucket.gradients, sharding.rank * part, part);
    bucket.own_weights = part_of(bucket.weights, sharding.rank * part, part);
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (plan.places[i]) {
      place(i, *plan.places[i]);
    }
  }
}

void ParameterMemory::place(std::size_t number, const Place& place) {
  Parameter& parameter = parameters_[number];
  const Bucket& bucket = buckets_[place.bucket];
  const Tensor& values = values_of_buckets_[place.bucket];
  const Shape& shape = parameter.spec.shape;
  const bool rounds = bucket.weights.dtype() != DType::kF32;
  const bool whole = values.size() == bucket.weights.size();
  const auto view = [&](const Tensor& flat) {
    return part_of(flat, place.begin, shape.size()).reshape(shape);
  };
  parameter.gradient = view(bucket.gradients);
  parameter.rounded = rounds ? view(bucket.weights) : Tensor{};
  parameter.value = whole ? view(values) : Tensor{};

  const std::int64_t part = bucket.own_gradients.size();
  const std::int64_t part_begin = sharding_.rank * part;
  const std::int64_t begin = std::max(place.begin, part_begin);
  const std::int64_t size = std::min(place.begin + shape.size(), part_begin + part) - begin;
  if (size <= 0) {
    return;
  }
  Parameter own = parameter;
  if (sharding_.ranks > 1) {
    own.begin = begin - place.begin;
    own.spec.shape = {size};
    own.gradient = part_of(bucket.gradients, begin, size);
    own.rounded = rounds ? part_of(bucket.weights, begin, size) : Tensor{};
    own.value = part_of(values, whole ? begin : begin - part_begin, size);
  }
  parts_[number] = own_.size();
  own_.push_back(own);
}

void ParameterMemory::set(std::size_t number, std::span<const float> values) const {
  const Parameter& parameter = parameters_[number];
  check<ShapeError>(static_cast<std::int64_t>(values.size()) == parameter.spec.shape.size(),
                    "'{}' has {} values, {} were given", parameter.spec.name,
                    parameter.spec.shape.size(), values.size());
  if (parameter.rounded) {
    std::vector<Bf16> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
    copy_from_host(parameter.rounded.raw(), rounded.data(), parameter.rounded.bytes(),
                   parameter.rounded.device());
  }
  if (parameter.value) {
    copy_from_host(parameter.value.raw(), values.data(), parameter.value.bytes(),
                   parameter.value.device());
  } else if (parts_[number]) {
    const Parameter& own = own_[*parts_[number]];
    copy_from_host(own.value.raw(), values.data() + own.begin, own.value.bytes(),
                   own.value.device());
  }
}

}  // namespace carope
