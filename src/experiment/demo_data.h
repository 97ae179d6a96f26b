#pragma once

#include <cstdint>
#include <filesystem>

namespace carope {

/// Makes training data out of nothing but this program: the synthetic corpus, in the tokens of a
/// vocabulary trained on it, as shards in `folder`. What an earlier call finished is not made
/// again.
void make_demo_data(const std::filesystem::path& folder, std::int64_t vocabulary,
                    std::int64_t training_tokens, int threads);

}  // namespace carope
