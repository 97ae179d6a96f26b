#pragma once

#include <functional>
#include <memory>

#include "core/context.h"

namespace carope {

/// Work on a GPU that is recorded once and then issued as a whole, at the cost of one launch. What
/// is to differ from launch to launch must stand in memory that the work reads.
class Graph {
 public:
  /// Records what `issue` gives to the context, a GPU's, without running it. The same must have run
  /// before: memory is not allocated and nothing can be measured while it is recorded.
  void record(Context& ctx, const std::function<void()>& issue);
  /// Whether there is a record to launch: none once the context's scratch is elsewhere than it was.
  bool ready(const Context& ctx) const;
  void launch(Context& ctx) const;

 private:
  std::shared_ptr<void> work_;
  const void* scratch_ = nullptr;
};

}  // namespace carope
