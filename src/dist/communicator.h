#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"
#include "dist/launch.h"

namespace carope {

/// The ranks of a run, one process each, which train one model together. All ranks call the same
/// operations in the same order.
///
/// Operations on tensors begin when what the context was given before is done, run in the order in
/// which they are issued, and go on beside what the context is given next, until join(): tensors
/// must neither go away nor be used before that.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sums over all ranks, in place. f32 or f64.
  virtual void all_reduce(Context& ctx, const Tensor& values) = 0;
  /// `own` becomes part number rank() of the sum over all ranks of `values`, which is as many parts
  /// of equal size as there are ranks; it may be that part of `values` itself, whose other parts
  /// are then good for nothing. f32 or f64.
  virtual void reduce_scatter(Context& ctx, const Tensor& values, const Tensor& own) = 0;
  /// The inverse: `values` becomes the parts of all ranks, of which this one gives `own`; that may
  /// be its part of `values` itself. Any type.
  virtual void all_gather(Context& ctx, const Tensor& own, const Tensor& values) = 0;
  /// Everyone's `values` become those of the root. Any type.
  virtual void broadcast(Context& ctx, const Tensor& values, int root) = 0;
  /// Lets what the context is given next wait for all of that.
  virtual void join(Context& ctx) = 0;

  /// Sums on the host; returns when they are there.
  virtual void sum(std::span<double> values) = 0;
  /// The values of all ranks, in their order, on the host; ranks may have different numbers of
  /// them.
  virtual std::vector<double> gather(std::span<const double> values) = 0;
  /// Returns when all ranks have come here.
  virtual void meet() = 0;
};

/// A run of one process.
std::unique_ptr<Communicator> make_alone();

/// The ranks that the launcher started, for tensors on this device: MPI's on the CPU, NCCL's on
/// GPUs. A rank that ends early, or is silent for longer than the timeout, ends this process with a
/// message that names it. A process makes one, and its destructor waits for the other ranks unless
/// an exception leads there. What this build or this launch cannot do is a ConfigError.
std::unique_ptr<Communicator> make_communicator(const Launch& launch, Device device,
                                                std::chrono::seconds timeout);

}  // namespace carope
