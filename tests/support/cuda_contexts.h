#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "support/op_case.h"

namespace carope::test {

inline bool has_gpu() { return !cuda::devices().empty(); }

/// One way to run on a GPU, and the operations to which it makes a difference.
struct CudaContext {
  std::string name;
  std::function<Context()> make;
  std::function<bool(const OpCase&)> concerns;
  bool repeats = true;  // equal inputs give equal bits
};

/// Every way in which operations are tested on a GPU. The first concerns all of them, and is how
/// models are tested.
inline std::vector<CudaContext> cuda_contexts() {
  const auto make = [](bool deterministic) {
    return [deterministic] {
      Context ctx = Context::cuda(0);
      ctx.set_deterministic(deterministic);
      return ctx;
    };
  };
  return {{"cuda", make(true), [](const OpCase&) { return true; }},
          {"fast", make(false), [](const OpCase& op) { return op.op == "attention"; }, false}};
}

}  // namespace carope::test
