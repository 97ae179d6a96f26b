#include "eval/windows.h"

#include <map>

namespace carope {
namespace {

std::vector<Window> sliding_windows(std::int64_t length, std::int64_t stride,
                                    std::int64_t stretch) {
  std::vector<Window> windows{{0, length, 0}};
  for (std::int64_t scored = length; scored < stretch;) {
    const std::int64_t end = std::min(scored + stride, stretch);
    windows.push_back({end - length, length, length - (end - scored)});
    scored = end;
  }
  return windows;
}

}  // namespace

std::vector<Window> cut_windows(const EvalConfig& config, std::int64_t length,
                                std::int64_t stretch) {
  if (config.protocol == Protocol::kSliding) {
    const std::int64_t half = std::max<std::int64_t>(length / 2, 1);
    return sliding_windows(length, config.stride > 0 ? config.stride : half, stretch);
  }
  const bool last_only = config.protocol == Protocol::kLast;
  std::vector<Window> windows;
  for (std::int64_t begin = 0; begin < stretch; begin += length) {
    const std::int64_t rest = std::min(length, stretch - begin);
    if (rest == length || !last_only) {
      windows.push_back({begin, rest, last_only ? length - config.last : 0});
    }
  }
  return windows;
}

std::vector<ScoredWindow> merge_windows(const std::vector<std::vector<Window>>& protocols) {
  std::map<std::pair<std::int64_t, std::int64_t>, ScoredWindow> merged;  // by begin and length
  for (std::size_t protocol = 0; protocol < protocols.size(); ++protocol) {
    for (std::size_t unit = 0; unit < protocols[protocol].size(); ++unit) {
      const auto& [begin, length, first] = protocols[protocol][unit];
      ScoredWindow& window =
          merged.try_emplace({begin, length}, ScoredWindow{begin, length}).first->second;
      window.parts.push_back({protocol, unit, first});
    }
  }
  std::vector<ScoredWindow> windows;
  for (auto& [place, window] : merged) {
    windows.push_back(std::move(window));
  }
  return windows;
}

}  // namespace carope
