#pragma once

#include <functional>

#include "model/gpt.h"

namespace carope {

/// The mean loss, in nats a counted token, of `batches` batches of [batch, length] tokens;
/// `make(i)` gives the i-th and keeps it until the next call.
double evaluate(Context& ctx, const Gpt& model, std::int64_t batch, std::int64_t length,
                std::int64_t batches, const std::function<Batch(std::int64_t)>& make);

}  // namespace carope
