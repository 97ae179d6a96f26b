#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "ops/attention.h"
#include "support/op_case.h"

namespace carope::test {

inline bool has_gpu() {
  const std::vector<cuda::DeviceInfo> devices = cuda::devices();
  return !devices.empty() && cuda::is_served(devices.front());
}

/// A context on the first GPU.
inline Context cuda_context(bool deterministic = true,
                            AttentionKernels::Use attention = AttentionKernels::Use::kFastest) {
  Context ctx = Context::cuda(0);
  ctx.set_deterministic(deterministic);
  ctx.state<AttentionKernels>().use = attention;
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
  const auto has_choices = [](const OpCase& op, DType) {
    return op.op == "linear" || op.op == "mlp" || op.op == "classifier" || op.op == "attention";
  };
  using Use = AttentionKernels::Use;
  return {
      {"own", [] { return cuda_context(); }, [](const OpCase&, DType) { return true; }},
      {"cudnn", [] { return cuda_context(true, Use::kCudnn); }, is_for_cudnn},
      {"cudnn_fast", [] { return cuda_context(false, Use::kCudnn); }, is_for_cudnn, false},
      {"fastest", [] { return cuda_context(false); }, has_choices, false},
  };
}

}  // namespace carope::test
