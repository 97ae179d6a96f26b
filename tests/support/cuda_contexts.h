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
};

/// Every way in which operations are tested on a GPU. The first concerns all of them.
inline std::vector<CudaContext> cuda_contexts() {
  return {{"cuda", [] { return Context::cuda(0); }, [](const OpCase&) { return true; }}};
}

}  // namespace carope::test
