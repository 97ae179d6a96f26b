#include "machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

namespace carope::ptx {
namespace {

constexpr int kTurn = 5000;  // instructions until others have a turn

/// Lanes of a warp that a block of so many threads has.
Mask lanes_of(std::size_t threads, int warp) {
  const std::size_t left = threads - static_cast<std::size_t>(warp) * kLanes;
  return left >= kLanes ? ~Mask{0} : (Mask{1} << left) - 1;
}

}  // namespace

bool Allocations::has(std::uintptr_t at, std::size_t bytes) {
  if (at >= begin_ && at + bytes <= end_) {
    return true;
  }
  auto after = ends_.upper_bound(at);
  if (after == ends_.begin() || at + bytes > (--after)->second) {
    return false;
  }
  begin_ = after->first;
  end_ = after->second;
  return true;
}

Allocations& allocations() {
  static Allocations all;
  return all;
}

Warp::Warp(Block& block, int number)
    : block_(block),
      number_(number),
      memory_(new std::byte[block.kernel().register_bytes + 64]),
      local_(new std::byte[block.kernel().local_bytes * kLanes]) {
  constexpr std::uintptr_t kAlignment = 64;
  const auto first = reinterpret_cast<std::uintptr_t>(memory_.get());
  registers_ = memory_.get() + (kAlignment - first % kAlignment) % kAlignment;
  std::fill_n(registers_, block.kernel().register_bytes, kUnwritten);
}

void Warp::begin() {
  std::fill_n(local_.get(), block_.kernel().local_bytes * kLanes, kUnwritten);
  alive_ = lanes_of(block_.launch().block.count(), number_);
  others_ = {{0, alive_}};
  mask_ = 0;
  copies.clear();
  std::fill_n(copy_groups, kLanes, 0);
  factors.clear();
  product_groups = 0;
  cluster_arrivals = 0;
  waited = 0;
}

void Warp::fail(const Instruction& i, int lane, const std::string& why) const {
  const Size at = block_.at();
  throw Fault(fmt::format("{}: thread {} of block ({}, {}, {}) at '{}': {}", block_.kernel().name,
                          number_ * kLanes + lane, at.x, at.y, at.z, i.text, why));
}

std::byte* Warp::memory(const Instruction& i, Space space, std::uint64_t at, std::size_t bytes,
                        int lane) const {
  if (at % bytes != 0) {
    fail(i, lane, fmt::format("{:#x} is no multiple of {}", at, bytes));
  }
  if (space == Space::kGeneric && at >= kSharedWindow && at < kParameterWindow) {
    space = Space::kShared;
    at -= kSharedWindow;
  }
  if (space == Space::kShared) {
    std::byte* const found = block_.shared(static_cast<std::uint32_t>(at), bytes);
    if (found == nullptr) {
      fail(i, lane, fmt::format("{:#x} is outside shared memory", at));
    }
    return found;
  }
  if (space == Space::kLocal) {
    if (at + bytes > block_.kernel().local_bytes) {
      fail(i, lane, fmt::format("{:#x} is outside local memory", at));
    }
    return local_.get() + static_cast<std::size_t>(lane) * block_.kernel().local_bytes + at;
  }
  if (at >= kParameterWindow) {
    at -= kParameterWindow;
    if (at + bytes > block_.kernel().parameter_bytes) {
      fail(i, lane, fmt::format("{:#x} is outside the parameters", at));
    }
    return block_.machine().parameters().data() + at;
  }
  if (!allocations().has(at, bytes)) {
    fail(i, lane, fmt::format("{} bytes at {:#x} are in no allocation", bytes, at));
  }
  return reinterpret_cast<std::byte*>(at);
}

bool Warp::gather(Mask wanted) {
  wanted &= alive_;
  for (Group& group : others_) {
    if (group.state == State::kGathering && group.pc == pc_) {
      mask_ |= group.mask;
      group.mask = 0;
    }
  }
  std::erase_if(others_, [](const Group& group) { return group.mask == 0; });
  if ((mask_ & wanted) == wanted) {
    return true;
  }
  others_.push_back({pc_, mask_, State::kGathering});
  mask_ = 0;
  stop_ = true;
  return false;
}

void Warp::wait_for(int barrier, unsigned times, const Operand* result) {
  others_.push_back({pc_ + 1, mask_, State::kAtBarrier, barrier, times, result});
  mask_ = 0;
  stop_ = true;
}

void Warp::let_others(bool again) {
  others_.push_back({again ? pc_ : pc_ + 1, mask_, State::kSlept});
  mask_ = 0;
  stop_ = true;
}

void Warp::fall_apart(bool before) {
  constexpr unsigned kSeldom = 64;
  constexpr std::array<Mask, 4> kBehind{0x55555555, 0xAAAAAAAA, 0x0000FFFF, 0xFFFF0000};
  Machine& machine = block_.machine();
  if (machine.random(kSeldom) != 0) {
    return;
  }
  const Mask behind = mask_ & kBehind[machine.random(kBehind.size())];
  if (behind != 0 && behind != mask_) {
    others_.push_back({before ? pc_ : pc_ + 1, behind, State::kSlept});
    mask_ &= ~behind;
  }
}

void Warp::leave() {
  alive_ &= ~mask_;
  mask_ = 0;
  stop_ = true;
  for (Group& group : others_) {  // who waited for these lanes looks again
    if (group.state == State::kGathering) {
      group.state = State::kReady;
    }
  }
  block_.note_end();
}

/// Groups whose barrier has opened go on; those that only let others go first have their turn.
void Warp::wake() {
  for (Group& group : others_) {
    const NamedBarrier& barrier = block_.barriers[group.barrier];
    if (group.state == State::kAtBarrier && barrier.times != group.times) {
      group.state = State::kReady;
      if (group.result != nullptr && group.result->bytes == 0) {
        Mask& kept = *out<Mask>(*group.result);
        kept = (kept & ~group.mask) | (barrier.result != 0 ? group.mask : 0);
      } else if (group.result != nullptr) {
        for (int lane = 0; lane < kLanes; ++lane) {
          if ((group.mask >> lane & 1) != 0) {
            out<std::uint32_t>(*group.result)[lane] = barrier.result;
          }
        }
      }
    } else if (group.state == State::kSlept) {
      group.state = State::kReady;
    }
  }
}

/// The ready lanes that are farthest behind go on, so that they meet the others again.
bool Warp::take_next() {
  if (mask_ != 0) {
    others_.push_back({pc_, mask_});
    mask_ = 0;
  }
  pc_ = limit_ = INT_MAX;
  for (const Group& group : others_) {
    if (group.state == State::kReady) {
      pc_ = std::min(pc_, group.pc);
    }
  }
  if (pc_ == INT_MAX) {
    return false;
  }
  for (Group& group : others_) {
    if (group.state == State::kReady) {
      if (group.pc == pc_) {
        mask_ |= group.mask;
        group.mask = 0;
      } else {
        limit_ = std::min(limit_, group.pc);
      }
    }
  }
  std::erase_if(others_, [](const Group& group) { return group.mask == 0; });
  return true;
}

void Warp::branch(const Instruction& i) {
  const Mask taken =
      i.guard == nullptr ? mask_ : mask_ & (predicate(*i.guard) ^ (i.unless ? ~Mask{0} : 0));
  const bool back = taken != 0 && i.target <= pc_;
  if (back && looked_) {
    looked_ = false;
    others_.push_back({i.target, taken, State::kSlept});
    if (taken != mask_) {
      others_.push_back({pc_ + 1, mask_ & ~taken});
    }
    mask_ = 0;
    stop_ = true;
  } else if (taken == mask_) {
    pc_ = i.target;
  } else if (taken == 0) {
    ++pc_;
  } else {
    others_.push_back({i.target, taken});
    mask_ &= ~taken;
    ++pc_;
    limit_ = std::min(limit_, i.target);
  }
}

bool Warp::run() {
  wake();
  bool ran_on = false;
  const auto* const code = block_.kernel().code.data();
  while (take_next()) {
    stop_ = false;
    int left = kTurn;
    while (left-- > 0 && pc_ < limit_) {
      const Instruction& i = code[pc_];
      if (i.run == nullptr) {
        branch(i);
        if (stop_) {
          break;
        }
        continue;
      }
      if (i.guard == nullptr) {
        i.run(*this, i);
      } else {
        const Mask all = mask_;
        mask_ &= predicate(*i.guard) ^ (i.unless ? ~Mask{0} : 0);
        const Mask some = mask_;
        if (some != 0) {
          i.run(*this, i);
        }
        if (stop_) {  // those that do not do it go on
          if ((all & ~some) != 0) {
            others_.push_back({pc_ + 1, all & ~some});
          }
          break;
        }
        mask_ |= all & ~some;
      }
      if (stop_) {
        break;
      }
      ++pc_;
    }
    if (left < 0 && mask_ != 0) {
      others_.push_back({pc_, mask_, State::kSlept});
      mask_ = 0;
      ran_on = true;
    }
  }
  return ran_on;
}

}  // namespace carope::ptx
