#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <unordered_set>

#include "kernel.h"

// What runs kernels: warps of 32 lanes that run the same instruction while they are at the same
// place, in blocks with shared memory, in clusters of blocks. It is an unkind GPU: which block and
// which warp goes first changes, lanes fall behind others, copies arrive as late as they may and
// leave nothing readable until then, and what a product still reads must not change. What it does
// not have: kernels that run at the same time, and writes that others see in another order.
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
  Size grid{}, block{};
  std::size_t dynamic_shared = 0;
  unsigned cluster = 1;      // blocks that share memory
  bool all_at_once = false;  // whether blocks wait for each other
  bool early = false;        // it may begin before the kernels before it are done
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

/// What some warps of a block wait at. It opens each time all of them have arrived.
struct NamedBarrier {
  unsigned arrived = 0;
  unsigned wanted = 0;   // 0: all that have not ended
  unsigned times = 0;    // it has opened
  unsigned counted = 0;  // threads that arrived with a true predicate
  unsigned result = 0;   // of the last opening
};

/// Bytes that must not change while something that reads them is under way.
struct Watched {
  static constexpr std::size_t kBytes = 16;

  explicit Watched(const std::byte* from) : at(from) { std::memcpy(was.data(), from, kBytes); }
  bool changed() const { return std::memcmp(at, was.data(), kBytes) != 0; }

  const std::byte* at;
  std::array<std::byte, kBytes> was;
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
  /// The lanes wait until a barrier opens once more, and get what was counted there.
  void wait_for(int barrier, unsigned times, const Operand* result = nullptr);
  /// Others have a turn; `again`: and this instruction is not done.
  void let_others(bool again);
  /// Has looked at what others may change.
  void note_look() { looked_ = true; }
  /// Some lanes may fall behind the others, before or after this instruction, until these wait for
  /// them.
  void fall_apart(bool before);
  void leave();

  struct Copy {
    int lane;
    std::byte* to;
    const std::byte* from;
    std::vector<std::byte> begun;  // what it copies
    std::size_t zeros;             // after that
    int group;
  };
  std::vector<Copy> copies;      // that lanes have begun by themselves
  int copy_groups[kLanes] = {};  // that each has closed
  struct Factor {
    Watched piece;
    int group;
  };
  std::vector<Factor> factors;  // in shared memory, of products under way
  int product_groups = 0;       // that have been closed
  unsigned cluster_arrivals = 0;
  Mask waited = 0;  // lanes that have waited for the kernels before

  [[noreturn]] void fail(const Instruction& i, int lane, const std::string& why) const;

 private:
  enum class State { kReady, kAtBarrier, kGathering, kSlept };
  struct Group {
    int pc = 0;
    Mask mask = 0;
    State state = State::kReady;
    int barrier = 0;
    unsigned times = 0;
    const Operand* result = nullptr;
  };

  void wake();
  bool take_next();
  void branch(const Instruction& i);

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

/// A copy to a block's shared memory that the machine makes by itself, some time.
struct PendingCopy {
  const Block* to;
  std::function<void()> run;
  int age;
};

class Machine;

class Block {
 public:
  Block(Machine& machine, std::size_t index);

  void begin(Size at);
  bool run();
  bool done() const;
  /// Throws where the address is another block's, and that is not there or has ended.
  std::byte* shared(std::uint32_t address, std::size_t bytes);

  const Kernel& kernel() const;
  const Launch& launch() const;
  Machine& machine() { return machine_; }
  unsigned warps_left() const;
  unsigned rank() const;
  std::size_t index() const { return index_; }
  Size at() const { return at_; }

  static constexpr int kBarriers = 16;
  NamedBarrier barriers[kBarriers];
  /// A warp arrives; all are wanted where `wanted` is 0. Whether it opens.
  bool arrive(int barrier, unsigned wanted, unsigned counted);
  /// Threads have ended: others may have waited for no one else.
  void note_end();

  /// Products and copies of the machine take another way to shared memory than a warp's own writes,
  /// which may not have come there until the warp fences them.
  void note_write(const std::byte* at, std::size_t bytes, int warp);
  void fence(int warp);
  bool is_unfenced(const std::byte* at, std::size_t bytes) const;

 private:
  template <class Visit>
  void for_each_piece(const std::byte* at, std::size_t bytes, const Visit& visit) const;

  Machine& machine_;
  std::size_t index_;  // among the blocks that run
  Size at_;
  std::vector<std::byte> shared_;
  std::vector<std::uint8_t> unfenced_;  // of its pieces: the warp that has written, and 1
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
  /// A warp arrives.
  void arrive_at_cluster(const Block& block);
  unsigned cluster_times(const Block& block) const;
  void note_end(const Block& block);
  void add_copy(const Block& to, std::function<void()> copy);
  void note_event() { ++events_; }
  /// A number below `count`; other ones in each launch, but the same in each run of a program.
  unsigned random(unsigned count);

 private:
  void run_together(std::size_t first, std::size_t count);
  bool run_blocks(std::size_t count);
  bool finish_copies(bool all);

  struct Cluster {
    unsigned arrived = 0, times = 0;
  };
  void open_if_all_are_there(const Block& block);
  const Kernel& kernel_;
  const Launch& launch_;
  std::span<std::byte> parameters_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Cluster> clusters_;
  std::vector<PendingCopy> copies_;
  std::uint64_t events_ = 0;
  std::uint32_t random_;
};

/// What kernels have written that let others begin before they were done, since one last began that
/// was not early: early kernels wait before they read that.
class UnfinishedWrites {
 public:
  void clear() { std::unordered_set<std::uint64_t>().swap(pieces_); }
  void add(std::uint64_t at) { pieces_.insert(at / kPiece); }
  bool has(std::uint64_t at) const { return pieces_.contains(at / kPiece); }

 private:
  static constexpr std::uint64_t kPiece = 16;
  std::unordered_set<std::uint64_t> pieces_;
};
UnfinishedWrites& unfinished_writes();

}  // namespace carope::ptx
