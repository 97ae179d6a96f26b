#pragma once

#include <cstdint>
#include <filesystem>

namespace carope {

/// Where the demonstration's shards lie in its data folder.
std::filesystem::path demo_shards(const std::filesystem::path& folder);

/// Makes training data out of nothing but this program: the synthetic corpus, in the tokens of a
/// vocabulary trained on it, as shards, enough to see no window twice. What an earlier call
/// finished is not made again; if that is not enough, it is an error.
void make_demo_data(const std::filesystem::path& folder, std::int64_t vocabulary,
                    std::int64_t training_tokens, int threads);

}  // namespace carope
