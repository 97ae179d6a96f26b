#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/parameter.h"

namespace carope {

/// How the processes that train a model share what only an optimizer needs: each keeps its part.
struct Sharding {
  int rank = 0;
  int ranks = 1;
  std::size_t bucket_bytes = 0;  // of gradients that are exchanged at once, at least; 0: as usual
};

/// Trainable parameters that lie side by side because the backward pass finishes their gradients
/// together. A bucket is cut into as many equal parts as there are ranks.
struct Bucket {
  std::int64_t block;    // whose backward pass finishes it; -1: the end of all
  Tensor gradients;      // [n] f32
  Tensor own_gradients;  // [n / ranks] the part of them whose sum over all ranks this one has
  Tensor weights;        // [n] what the model computes with, f32 or bf16
  Tensor own_weights;    // [n / ranks] the part of them that this rank updates
};

/// The parameters of a model in memory. Where a model computes with bf16 copies, several ranks
/// share the fp32 values: each has those of its parts alone.
class ParameterMemory {
 public:
  ParameterMemory() = default;
  ParameterMemory(const std::vector<ParameterSpec>& specs, Device device, DType compute,
                  const Sharding& sharding);

  /// In the order of the specs.
  std::span<const Parameter> parameters() const { return parameters_; }
  /// What this rank updates: the trainable parameters, or its parts of them.
  std::span<const Parameter> own() const { return own_; }
  /// In the order in which the backward pass finishes them.
  std::span<const Bucket> buckets() const { return buckets_; }
  std::size_t bytes() const { return values_.bytes() + gradients_.bytes() + rounded_.bytes(); }

  /// Gives a parameter its values, those of the whole of it.
  void set(std::size_t parameter, std::span<const float> values) const;

 private:
  /// A parameter's place in its bucket.
  struct Place {
    std::size_t bucket;
    std::int64_t begin;
  };
  struct Plan;

  /// Makes the views of a trainable parameter.
  void place(std::size_t parameter, const Place& place);

  Sharding sharding_;
  std::vector<Bucket> buckets_;
  std::vector<Tensor> values_of_buckets_;  // f32; where they are shared, this rank's parts
  std::vector<Parameter> parameters_;
  std::vector<Parameter> own_;
  std::vector<std::optional<std::size_t>> parts_;  // this rank's of each parameter, in own_
  Arena values_, gradients_, rounded_;
};

}  // namespace carope
