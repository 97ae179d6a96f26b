#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "ops/attention.h"
#include "support/op_case.h"

namespace carope::test {

inline bool has_gpu() { return !cuda::devices().empty(); }

/// A context on the first GPU: with whichever kernels are fastest, or with our own alone.
inline Context cuda_context(bool own_only = false, bool deterministic = true) {
  Context ctx = Context::cuda(0);
  ctx.set_deterministic(deterministic);
  ctx.state<AttentionKernels>().own_only = own_only;
  return ctx;
}

/// One way to run on a GPU, and the operations to which it makes a difference.
struct CudaContext {
  std::string name;
  std::function<Context()> make;
  std::function<bool(const OpCase&, DType activation)> concerns;
  bool repeats = true;  // equal inputs give equal bits
};

/// Every way in which operations are tested on a GPU.
inline std::vector<CudaContext> cuda_contexts() {
  const auto is_for_cudnn = [](const OpCase& op, DType activation) {
    const bool plain = op.constants.empty();  // neither slopes nor documents
    return op.op == "attention" && plain && activation == DType::kBF16;
  };
  return {
      {"own", [] { return cuda_context(true); }, [](const OpCase&, DType) { return true; }},
      {"cudnn", [] { return cuda_context(false); }, is_for_cudnn},
      {"cudnn_fast", [] { return cuda_context(false, false); }, is_for_cudnn, false},
  };
}

}  // namespace carope::test
