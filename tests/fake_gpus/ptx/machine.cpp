#include "machine.h"

#include <algorithm>

namespace carope::ptx {

UnfinishedWrites& unfinished_writes() {
  static UnfinishedWrites all;
  return all;
}

Block::Block(Machine& machine, std::size_t index)
    : machine_(machine),
      index_(index),
      shared_(machine.kernel().dynamic_shared + machine.launch().dynamic_shared),
      unfenced_(machine.kernel().multiplies_shared ? shared_.size() / Watched::kBytes + 1 : 0) {
  const std::size_t warps = (machine.launch().block.count() + kLanes - 1) / kLanes;
  for (std::size_t i = 0; i < warps; ++i) {
    warps_.push_back(std::make_unique<Warp>(*this, static_cast<int>(i)));
  }
}

void Block::begin(Size at) {
  at_ = at;
  std::fill(shared_.begin(), shared_.end(), kUnwritten);
  std::fill(unfenced_.begin(), unfenced_.end(), std::uint8_t{0});
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

bool Block::arrive(int barrier, unsigned wanted, unsigned counted) {
  NamedBarrier& b = barriers[barrier];
  b.wanted = wanted;
  ++b.arrived;
  b.counted += counted;
  machine_.note_event();
  if (b.arrived < (wanted == 0 ? warps_left() : wanted)) {
    return false;
  }
  b = {.times = b.times + 1, .result = b.counted};
  return true;
}

void Block::note_end() {
  machine_.note_event();
  for (NamedBarrier& b : barriers) {
    if (b.wanted == 0 && b.arrived > 0 && b.arrived == warps_left()) {
      b = {.times = b.times + 1, .result = b.counted};
    }
  }
  machine_.note_end(*this);
}

bool Block::done() const { return warps_left() == 0; }

std::byte* Block::shared(std::uint32_t address, std::size_t bytes) {
  const std::uint32_t own = address & ((1U << kRankBit) - 1);
  if (address >> kRankBit != 0) {
    Block& peer = machine_.peer(*this, (address >> kRankBit) - 1);
    if (peer.done()) {
      throw Fault(kernel().name + ": shared memory of a block that has ended");
    }
    return peer.shared(own, bytes);
  }
  return own < kSharedBegin || own - kSharedBegin + bytes > shared_.size()
             ? nullptr
             : shared_.data() + (own - kSharedBegin);
}

template <class Visit>
void Block::for_each_piece(const std::byte* at, std::size_t bytes, const Visit& visit) const {
  if (unfenced_.empty() || at < shared_.data() || at >= shared_.data() + shared_.size()) {
    return;
  }
  const auto first = static_cast<std::size_t>(at - shared_.data());
  for (std::size_t i = first / Watched::kBytes; i * Watched::kBytes < first + bytes; ++i) {
    visit(i);
  }
}

void Block::note_write(const std::byte* at, std::size_t bytes, int warp) {
  for_each_piece(at, bytes,
                 [&](std::size_t i) { unfenced_[i] = static_cast<std::uint8_t>(warp + 1); });
}

void Block::fence(int warp) {
  std::replace(unfenced_.begin(), unfenced_.end(), static_cast<std::uint8_t>(warp + 1),
               std::uint8_t{0});
}

bool Block::is_unfenced(const std::byte* at, std::size_t bytes) const {
  bool found = false;
  for_each_piece(at, bytes, [&](std::size_t i) { found = found || unfenced_[i] != 0; });
  return found;
}

const Kernel& Block::kernel() const { return machine_.kernel(); }
const Launch& Block::launch() const { return machine_.launch(); }
unsigned Block::rank() const { return static_cast<unsigned>(index_ % launch().cluster); }

unsigned Block::warps_left() const {
  return static_cast<unsigned>(
      std::count_if(warps_.begin(), warps_.end(), [](const auto& warp) { return !warp->done(); }));
}

Machine::Machine(const Kernel& kernel, const Launch& launch, std::span<std::byte> parameters)
    : kernel_(kernel), launch_(launch), parameters_(parameters) {
  constexpr std::uint32_t kFarApart = 2654435761;
  static std::uint32_t launches = 0;
  random_ = ++launches * kFarApart;
  const std::size_t together = launch.all_at_once ? launch.grid.count() : launch.cluster;
  for (std::size_t i = 0; i < together; ++i) {
    blocks_.push_back(std::make_unique<Block>(*this, i));
  }
  clusters_.resize(together / launch.cluster);
}

Block& Machine::peer(const Block& block, unsigned rank) {
  if (rank >= launch_.cluster) {
    throw Fault(kernel_.name + ": a block that is not in the cluster");
  }
  return *blocks_[block.index() - block.rank() + rank];
}

void Machine::arrive_at_cluster(const Block& block) {
  ++clusters_[block.index() / launch_.cluster].arrived;
  open_if_all_are_there(block);
  note_event();
}

void Machine::note_end(const Block& block) {
  if (clusters_[block.index() / launch_.cluster].arrived > 0) {
    open_if_all_are_there(block);
  }
  const bool copied_to = std::any_of(copies_.begin(), copies_.end(),
                                     [&](const PendingCopy& copy) { return copy.to == &block; });
  if (copied_to && block.done()) {
    throw Fault(kernel_.name + ": a block ends before what is copied to it has come");
  }
}

void Machine::open_if_all_are_there(const Block& block) {
  unsigned wanted = 0;
  for (unsigned rank = 0; rank < launch_.cluster; ++rank) {
    wanted += peer(block, rank).warps_left();
  }
  Cluster& cluster = clusters_[block.index() / launch_.cluster];
  if (cluster.arrived == wanted) {
    cluster = {.times = cluster.times + 1};
  }
}

unsigned Machine::cluster_times(const Block& block) const {
  return clusters_[block.index() / launch_.cluster].times;
}

unsigned Machine::random(unsigned count) {
  constexpr std::uint32_t kMultiplier = 1664525;
  constexpr std::uint32_t kStep = 1013904223;
  random_ = random_ * kMultiplier + kStep;
  return (random_ >> 16) % count;
}

void Machine::add_copy(const Block& to, std::function<void()> copy) {
  constexpr unsigned kMostRounds = 4;
  copies_.push_back({&to, std::move(copy), static_cast<int>(random(kMostRounds))});
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

/// One turn of each; now the first and now the last begins.
bool Machine::run_blocks(std::size_t count) {
  bool ran_on = false;
  const bool backwards = random(2) == 1;
  for (std::size_t i = 0; i < count; ++i) {
    Block& block = *blocks_[backwards ? count - 1 - i : i];
    ran_on = (!block.done() && block.run()) || ran_on;
  }
  return ran_on;
}

void Machine::run_together(std::size_t first, std::size_t count) {
  constexpr int kPatience = 100;  // rounds in which nothing happens
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t number = first + i;
    const Size& grid = launch_.grid;
    blocks_[i]->begin({static_cast<unsigned>(number % grid.x),
                       static_cast<unsigned>(number / grid.x % grid.y),
                       static_cast<unsigned>(number / grid.x / grid.y)});
  }
  std::fill(clusters_.begin(), clusters_.end(), Cluster{});
  int idle = 0;
  const auto ended = [](const auto& block) { return block->done(); };
  while (!std::all_of(blocks_.begin(), blocks_.end(), ended)) {
    const std::uint64_t before = events_;
    const bool ran_on = run_blocks(count);
    const bool moved = finish_copies(false) || ran_on || events_ != before;
    idle = moved ? 0 : idle + 1;
    if (idle > 1 && !finish_copies(true) && idle > kPatience) {
      throw Fault(kernel_.name + ": all threads wait, and nothing comes");
    }
  }
}

/// Blocks that need not run together run one after another, in an order that nothing is to rely on.
void Machine::run() {
  if (!launch_.early) {
    unfinished_writes().clear();
  }
  const std::size_t rounds = launch_.grid.count() / blocks_.size();
  const std::size_t begin = random(static_cast<unsigned>(rounds));
  for (std::size_t i = 0; i < rounds; ++i) {
    run_together((begin + i) % rounds * blocks_.size(), blocks_.size());
  }
  if (!kernel_.lets_next_begin) {
    unfinished_writes().clear();
  }
}

}  // namespace carope::ptx
