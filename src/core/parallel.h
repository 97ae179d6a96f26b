#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "core/context.h"

namespace carope {

/// Calls `body(i)` for every i in [0, count), on the context's threads. What the tasks are must not
/// depend on the number of threads: then neither does any result. If tasks throw, the first
/// exception leaves when all have ended.
template <class Body>
void parallel_for(const Context& context, std::int64_t count, const Body& body) {
  std::exception_ptr failure;
#pragma omp parallel num_threads(count > 1 ? context.threads() : 1)
  {
    // A matrix product inside a task must stay on its thread, also where the team has one member
    // and OpenMP does not count the region as parallel.
    const int outer = omp_get_max_threads();
    omp_set_num_threads(1);
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t i = 0; i < count; ++i) {
      try {
        body(i);
      } catch (...) {
#pragma omp critical(carope_parallel_failure)
        failure = failure ? failure : std::current_exception();
      }
    }
    omp_set_num_threads(outer);
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

/// Calls `body(begin, end)` for blocks of `block` indices (the last may be shorter) covering [0,
/// count).
template <class Body>
void parallel_blocks(const Context& context, std::int64_t count, std::int64_t block,
                     const Body& body) {
  parallel_for(context, (count + block - 1) / block,
               [&](std::int64_t i) { body(i * block, std::min(count, (i + 1) * block)); });
}

}  // namespace carope
