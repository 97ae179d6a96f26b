#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Kernels as the compiler leaves them in PTX, taken apart for a machine that runs them.
namespace carope::ptx {

class Warp;

inline constexpr int kLanes = 32;
/// What memory and registers hold that nobody has written.
inline constexpr std::byte kUnwritten{0xFF};
/// A bit for each lane of a warp. A predicate register is one, too.
using Mask = std::uint32_t;

/// Where a value lies: in a register, which has kLanes values side by side, or in as many copies of
/// a constant.
struct Operand {
  std::intptr_t at = 0;  // an address, of registers from the warp's first one
  int bytes = 0;         // of a lane's value; 0 in predicates
  bool constant = false;
  std::int64_t offset = 0;  // added to an address
};

enum class Space { kGeneric, kGlobal, kShared, kLocal };

struct Instruction {
  using Run = void (*)(Warp&, const Instruction&);

  Run run = nullptr;
  const Operand* operands = nullptr;  // in the order of the text, results first
  int count = 0;                      // of them
  const Operand* guard = nullptr;     // whether it is done
  bool unless = false;                // the guard is false
  int target = 0;                     // of a branch
  int special = 0;                    // of kSpecial, where it reads one
  Space space = Space::kGeneric;
  std::string text;

  const Operand& operator[](int i) const { return operands[i]; }
};

struct Parameter {
  std::size_t offset, bytes;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0;
  std::size_t register_bytes = 0;  // of a warp
  std::size_t dynamic_shared = 0;  // bytes of shared memory without what a launch adds
  std::size_t local_bytes = 0;     // of a thread
  std::size_t most_threads = 1024;
  bool lets_next_begin = false;    // before it is done
  bool multiplies_shared = false;  // memory, without loading it

  std::deque<std::vector<Operand>> operands;
  std::deque<std::vector<std::uint64_t>> constants;
};

/// Where in shared memory a block's begins: addresses below are nobody's.
inline constexpr std::uint32_t kSharedBegin = 1024;
/// From this bit on an address has the rank of another block of the cluster, and 1.
inline constexpr unsigned kRankBit = 24;
/// Added to a shared address it is one of all memory.
inline constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 56;

/// The kernel of this name in a module's text, or throws. An operand that names a parameter has its
/// offset, to which kParameterWindow is added.
inline constexpr std::uint64_t kParameterWindow = std::uint64_t{1} << 57;
Kernel parse_kernel(std::string_view module, const std::string& name);
bool has_kernel(std::string_view module, const std::string& name);

/// What a thread can read of its place; by number.
inline constexpr std::array<std::string_view, 11> kSpecial{
    "%tid.x",    "%tid.y",    "%ntid.x", "%ctaid.x",     "%ctaid.y",        "%ctaid.z",
    "%nctaid.x", "%nctaid.y", "%laneid", "%lanemask_le", "%cluster_ctarank"};

/// What does an instruction, by its name without operands; or null.
Instruction::Run find_instruction(const std::string& opcode);

}  // namespace carope::ptx
