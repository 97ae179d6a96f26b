#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>

#include "kernel.h"

// What runs kernels: warps of 32 lanes that run the same instruction while they are at the same
// place, in blocks with shared memory, in clusters of blocks. Which warp goes first changes, and
// copies arrive as late as they may.
namespace carope::ptx {

/// What a GPU would have stopped for.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Size {
  unsigned x = 1, y = 1, z = 1;

  std::size_t count() const { return std::size_t{x} * y * z; }
};

struct Launch {
  Size grid, block;
  std::size_t dynamic_shared = 0;
  unsigned cluster = 1;      // blocks that share memory
  bool all_at_once = false;  // whether blocks wait for each other
};

class Block;

/// Memory that kernels may use, by its first address.
class Allocations {
 public:
  void add(std::uintptr_t begin, std::size_t bytes) { ends_[begin] = begin + bytes; }
  void remove(std::uintptr_t begin) {
    ends_.erase(begin);
    begin_ = end_ = 0;
  }
  bool has(std::uintptr_t at, std::size_t bytes);

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_;
  std::uintptr_t begin_ = 0, end_ = 0;  // of the one looked up last
};
Allocations& allocations();

/// What some threads of a block wait at. It opens each time all of them have arrived.
struct NamedBarrier {
  unsigned arrived = 0;
  unsigned times = 0;    // it has opened
  unsigned counted = 0;  // of those that arrived, with a true predicate
  unsigned result = 0;   // of the last opening
  bool for_all = false;  // threads that have not ended
};

class Warp {
 public:
  Warp(Block& block, int number);

  void begin();
  bool done() const { return alive_ == 0; }
  /// Runs until all lanes wait, or for a while. Whether anything may have changed for others.
  bool run();

  // For instructions.

  template <class T>
  const T* in(const Operand& from) const {
    return reinterpret_cast<const T*>(
        from.constant ? from.at : reinterpret_cast<std::intptr_t>(registers_) + from.at);
  }
  template <class T>
  T* out(const Operand& to) const {
    return reinterpret_cast<T*>(registers_ + to.at);
  }
  Mask predicate(const Operand& from) const { return *in<Mask>(from); }
  void set_predicate(const Operand& to, Mask value) const {
    Mask& kept = *out<Mask>(to);
    kept = (kept & ~mask_) | (value & mask_);
  }
  Mask mask() const { return mask_; }
  Mask alive() const { return alive_; }
  Block& block() const { return block_; }
  int number() const { return number_; }
  /// A lane's address of an operand of 4 or 8 bytes.
  std::uint64_t address(const Operand& from, int lane) const {
    const std::uint64_t at =
        from.bytes == 4 ? in<std::uint32_t>(from)[lane] : in<std::uint64_t>(from)[lane];
    return at + static_cast<std::uint64_t>(from.offset);
  }
  /// The bytes at a lane's address.
  std::byte* memory(const Instruction& i, Space space, std::uint64_t at, std::size_t bytes,
                    int lane) const;

  /// Whether all lanes of `wanted` that are still there are at this instruction; else those that
  /// are wait for them, and the instruction is not done.
  bool gather(Mask wanted);
  /// The lanes wait until a barrier opens once more.
  void wait_for(int barrier, unsigned times);
  /// Others have a turn; `again`: and this instruction is not done.
  void let_others(bool again);
  /// Has looked at what others may change.
  void note_look() { looked_ = true; }
  void leave();

  struct Copy {
    int lane;
    std::byte* to;
    const std::byte* from;
    std::size_t bytes, zeros;
    int group;
  };
  std::vector<Copy> copies;      // that lanes have begun by themselves
  int copy_groups[kLanes] = {};  // that each has closed
  unsigned cluster_arrivals = 0;

  [[noreturn]] void fail(const Instruction& i, int lane, const std::string& why) const;

 private:
  enum class State { kReady, kAtBarrier, kGathering, kSlept };
  struct Group {
    int pc = 0;
    Mask mask = 0;
    State state = State::kReady;
    int barrier = 0;
    unsigned times = 0;
  };

  void wake();
  bool take_next();
  void branch(const Instruction& i);
  void split(Mask leaving, int pc);

  Block& block_;
  int number_;
  std::byte* registers_ = nullptr;
  std::unique_ptr<std::byte[]> memory_, local_;
  Mask alive_ = 0;
  int pc_ = 0;
  Mask mask_ = 0;
  std::vector<Group> others_;
  int limit_ = 0;  // the lowest place of others that are ready
  bool stop_ = false, looked_ = false;
};

/// A copy that the machine makes by itself, some time.
struct PendingCopy {
  std::function<void()> run;
  int age;
};

class Machine;

class Block {
 public:
  Block(Machine& machine, unsigned rank);

  void begin(Size at);
  bool run();
  bool done() const;
  std::byte* shared(std::uint32_t address, std::size_t bytes);

  const Kernel& kernel() const;
  const Launch& launch() const;
  Machine& machine() { return machine_; }
  unsigned threads_left() const;
  unsigned rank() const { return rank_; }
  Size at() const { return at_; }

  NamedBarrier barriers[16];
  /// So many lanes arrive; all threads are wanted where `wanted` is 0. Whether it opens.
  bool arrive(int barrier, unsigned lanes, unsigned wanted, unsigned counted);
  /// Threads have ended: others may have waited for no one else.
  void note_end();

 private:
  Machine& machine_;
  unsigned rank_;
  Size at_;
  std::vector<std::byte> shared_;
  std::vector<std::unique_ptr<Warp>> warps_;
};

/// The blocks that run at the same time.
class Machine {
 public:
  Machine(const Kernel& kernel, const Launch& launch, std::span<std::byte> parameters);

  void run();

  const Kernel& kernel() const { return kernel_; }
  const Launch& launch() const { return launch_; }
  std::span<std::byte> parameters() const { return parameters_; }
  /// The block with this rank in the cluster of another.
  Block& peer(const Block& block, unsigned rank);
  void arrive_at_cluster(const Block& block, unsigned threads);
  unsigned cluster_times(const Block& block) const;
  void add_copy(std::function<void()> copy);
  void note_event() { ++events_; }
  /// A number below `count`; the same ones in each launch.
  unsigned random(unsigned count);

 private:
  void run_together(std::size_t first, std::size_t count);
  bool finish_copies(bool all);

  struct Cluster {
    unsigned arrived = 0, times = 0;
  };
  const Kernel& kernel_;
  const Launch& launch_;
  std::span<std::byte> parameters_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Cluster> clusters_;
  std::vector<PendingCopy> copies_;
  std::uint64_t events_ = 0;
  std::uint32_t random_ = 1;
};

}  // namespace carope::ptx
