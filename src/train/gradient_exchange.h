#pragma once

#include <span>

#include "core/arena.h"
#include "dist/communicator.h"
#include "model/parameter_memory.h"

namespace carope {

/// How gradients are summed over micro-batches and ranks.
enum class Sums : std::uint8_t {
  kFast,   // in fp32, in an order that depends on the number of ranks
  kExact,  // in fp64, rounded once at the end; on the CPU only
};

/// Lets ranks train one model: sums their gradients while the backward pass goes on, and gives
/// everyone the weights that each has updated a part of. One rank exchanges nothing.
class GradientExchange {
 public:
  GradientExchange(Communicator& ranks, const ParameterMemory& memory, Device device, Sums sums);

  /// Whether gradients of a step's micro-batches are added up here, not by the model.
  bool accumulates() const { return sums_ == Sums::kExact; }
  /// Takes the gradients of a block, or -1 the rest, of a micro-batch. The last of a step's sends
  /// them off.
  void finished(Context& ctx, std::int64_t block, bool first, bool last);
  /// Brings the sums over all ranks into the own gradients.
  void join(Context& ctx);
  /// Gives all ranks the weights of all.
  void share_weights(Context& ctx);
  /// The trainable parameters' whole tensors from own tensors of all ranks, in the order of
  /// ParameterMemory::own(). They replace the gradients, so that they need no room.
  std::vector<Tensor> whole(Context& ctx, std::span<const Tensor> own);

 private:
  Tensor own_part(const Tensor& bucket) const;

  Communicator& ranks_;
  const ParameterMemory& memory_;
  Sums sums_;
  std::vector<Tensor> exact_;  // f64: each bucket's sum of micro-batches
  Arena arena_;
};

}  // namespace carope
