#include "machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <climits>

namespace carope::ptx {
namespace {

constexpr int kTurn = 5000;     // instructions until others have a turn
constexpr int kPatience = 100;  // rounds in which nothing happens
constexpr std::byte kUnwritten{0xFF};

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
  cluster_arrivals = 0;
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

void Warp::wait_for(int barrier, unsigned times) {
  others_.push_back({pc_ + 1, mask_, State::kAtBarrier, barrier, times});
  mask_ = 0;
  stop_ = true;
}

void Warp::let_others(bool again) {
  others_.push_back({again ? pc_ : pc_ + 1, mask_, State::kSlept});
  mask_ = 0;
  stop_ = true;
}

void Warp::leave() {
  alive_ &= ~mask_;
  mask_ = 0;
  stop_ = true;
  block_.note_end();
}

/// Groups whose barrier has opened go on; those that only let others go first have their turn.
void Warp::wake() {
  for (Group& group : others_) {
    if (group.state == State::kAtBarrier && block_.barriers[group.barrier].times != group.times) {
      group.state = State::kReady;
      const Instruction& i = block_.kernel().code[static_cast<std::size_t>(group.pc - 1)];
      if (i.text.starts_with("bar.red")) {
        const unsigned result = block_.barriers[group.barrier].result;
        if (i[0].bytes == 0) {
          Mask& kept = *out<Mask>(i[0]);
          kept = (kept & ~group.mask) | (result != 0 ? group.mask : 0);
        } else {
          for (int lane = 0; lane < kLanes; ++lane) {
            if ((group.mask >> lane & 1) != 0) {
              out<std::uint32_t>(i[0])[lane] = result;
            }
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
        mask_ = all;
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

Block::Block(Machine& machine, unsigned rank)
    : machine_(machine),
      rank_(rank),
      shared_(machine.kernel().dynamic_shared + machine.launch().dynamic_shared) {
  const std::size_t warps = (machine.launch().block.count() + kLanes - 1) / kLanes;
  for (std::size_t i = 0; i < warps; ++i) {
    warps_.push_back(std::make_unique<Warp>(*this, static_cast<int>(i)));
  }
}

void Block::begin(Size at) {
  at_ = at;
  std::fill(shared_.begin(), shared_.end(), kUnwritten);
  std::fill(std::begin(barriers), std::end(barriers), NamedBarrier{});
  for (const auto& warp : warps_) {
    warp->begin();
  }
}

/// The last warp goes as often first as the first: what one has for another must be waited for.
bool Block::run() {
  bool ran_on = false;
  const bool backwards = machine_.random(2) == 1;
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    ran_on = warps_[backwards ? warps_.size() - 1 - i : i]->run() || ran_on;
  }
  return ran_on;
}

bool Block::arrive(int barrier, unsigned lanes, unsigned wanted, unsigned counted) {
  NamedBarrier& b = barriers[barrier];
  b.for_all = wanted == 0;
  b.arrived += lanes;
  b.counted += counted;
  machine_.note_event();
  if (b.arrived < (b.for_all ? threads_left() : wanted)) {
    return false;
  }
  b = {.times = b.times + 1, .result = b.counted};
  return true;
}

void Block::note_end() {
  machine_.note_event();
  for (NamedBarrier& b : barriers) {
    if (b.for_all && b.arrived > 0 && b.arrived == threads_left()) {
      b = {.times = b.times + 1, .result = b.counted};
    }
  }
}

bool Block::done() const {
  return std::all_of(warps_.begin(), warps_.end(), [](const auto& warp) { return warp->done(); });
}

std::byte* Block::shared(std::uint32_t address, std::size_t bytes) {
  constexpr unsigned kRankBits = 24;
  const std::uint32_t own = address & ((1U << kRankBits) - 1);
  if (address >> kRankBits != 0) {
    return machine_.peer(*this, (address >> kRankBits) - 1).shared(own, bytes);
  }
  return own < kSharedBegin || own - kSharedBegin + bytes > shared_.size()
             ? nullptr
             : shared_.data() + (own - kSharedBegin);
}

const Kernel& Block::kernel() const { return machine_.kernel(); }
const Launch& Block::launch() const { return machine_.launch(); }

unsigned Block::threads_left() const {
  unsigned count = 0;
  for (const auto& warp : warps_) {
    count += static_cast<unsigned>(std::popcount(warp->alive()));
  }
  return count;
}

Machine::Machine(const Kernel& kernel, const Launch& launch, std::span<std::byte> parameters)
    : kernel_(kernel), launch_(launch), parameters_(parameters) {
  const std::size_t together = launch.all_at_once ? launch.grid.count() : launch.cluster;
  for (std::size_t i = 0; i < together; ++i) {
    blocks_.push_back(std::make_unique<Block>(*this, static_cast<unsigned>(i % launch.cluster)));
  }
  clusters_.resize(together / launch.cluster);
}

Block& Machine::peer(const Block& block, unsigned rank) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].get() == &block) {
      return *blocks_.at(i / launch_.cluster * launch_.cluster + rank);
    }
  }
  throw Fault("a block that does not run");
}

void Machine::arrive_at_cluster(const Block& block, unsigned threads) {
  unsigned wanted = 0;
  for (unsigned rank = 0; rank < launch_.cluster; ++rank) {
    wanted += peer(block, rank).threads_left();
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].get() == &block) {
      Cluster& cluster = clusters_[i / launch_.cluster];
      cluster.arrived += threads;
      if (cluster.arrived == wanted) {
        cluster.arrived = 0;
        ++cluster.times;
      }
    }
  }
  note_event();
}

unsigned Machine::cluster_times(const Block& block) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].get() == &block) {
      return clusters_[i / launch_.cluster].times;
    }
  }
  return 0;
}

unsigned Machine::random(unsigned count) {
  constexpr std::uint32_t kMultiplier = 1664525;
  constexpr std::uint32_t kStep = 1013904223;
  random_ = random_ * kMultiplier + kStep;
  return (random_ >> 16) % count;
}

void Machine::add_copy(std::function<void()> copy) {
  constexpr unsigned kMostRounds = 4;
  copies_.push_back({std::move(copy), static_cast<int>(random(kMostRounds))});
}

bool Machine::finish_copies(bool all) {
  std::vector<PendingCopy> now;
  for (PendingCopy& copy : copies_) {
    if (all || copy.age-- == 0) {
      now.push_back(std::move(copy));
      copy.run = nullptr;
    }
  }
  std::erase_if(copies_, [](const PendingCopy& copy) { return copy.run == nullptr; });
  std::for_each(now.rbegin(), now.rend(), [](const PendingCopy& copy) { copy.run(); });
  return !now.empty();
}

void Machine::run_together(std::size_t first, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t number = first + i;
    const Size& grid = launch_.grid;
    blocks_[i]->begin({static_cast<unsigned>(number % grid.x),
                       static_cast<unsigned>(number / grid.x % grid.y),
                       static_cast<unsigned>(number / grid.x / grid.y)});
  }
  std::fill(clusters_.begin(), clusters_.end(), Cluster{});
  int idle = 0;
  for (;;) {
    const std::uint64_t before = events_;
    bool done = true;
    bool ran_on = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (!blocks_[i]->done()) {
        ran_on = blocks_[i]->run() || ran_on;
        done = done && blocks_[i]->done();
      }
    }
    if (done) {
      break;
    }
    const bool moved = finish_copies(false) || ran_on || events_ != before;
    idle = moved ? 0 : idle + 1;
    if (idle > 1 && !finish_copies(true) && idle > kPatience) {
      throw Fault(kernel_.name + ": all threads wait, and nothing comes");
    }
  }
  finish_copies(true);
}

void Machine::run() {
  const std::size_t blocks = launch_.grid.count();
  for (std::size_t first = 0; first < blocks; first += blocks_.size()) {
    run_together(first, std::min(blocks_.size(), blocks - first));
  }
}

}  // namespace carope::ptx
