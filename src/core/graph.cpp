#include "core/graph.h"

#include "core/cuda.h"

namespace carope {

void Graph::record(Context& ctx, const std::function<void()>& issue) {
  work_ = cuda::record_graph(ctx.stream(), issue);
  scratch_ = ctx.scratch_address();
}

bool Graph::ready(const Context& ctx) const {
  return work_ != nullptr && scratch_ == ctx.scratch_address();
}

void Graph::launch(Context& ctx) const { cuda::launch_graph(ctx.stream(), work_.get()); }

}  // namespace carope
