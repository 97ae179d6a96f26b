#pragma once

#include <cstddef>
#include <string>
#include <vector>

// GPUs for machines that have none: a program that links these files gets them in place of CUDA's
// runtime, cuBLASLt and NCCL. They refuse what GPUs refuse: kernels in a stream of another device
// than the current one, blocks and shared memory that are too large, memory that is not theirs,
// waiting while a graph is captured.
//
// Most compute nothing: what is read from their memory is zero, and a host that touches it itself
// crashes. One that computes runs each kernel as soon as it is launched, from its PTX.
namespace carope::fake {

struct Gpu {
  std::string name;
  int compute_major, compute_minor;
  int multiprocessors;
  int shared_bytes;  // that a block may ask for
  std::size_t memory_bytes;
  bool computes = false;  // what kernels say, slowly
};

inline const Gpu kA100{"A100", 8, 0, 108, 163 * 1024, std::size_t{40} << 30};
inline const Gpu kRtx3090{"RTX 3090", 8, 6, 82, 99 * 1024, std::size_t{24} << 30};
inline const Gpu kRtx4060{"RTX 4060", 8, 9, 24, 99 * 1024, std::size_t{8} << 30};
inline const Gpu kH200{"H200", 9, 0, 132, 227 * 1024, std::size_t{141} << 30};
inline const Gpu kB200{"B200", 10, 0, 148, 227 * 1024, std::size_t{180} << 30};
inline const Gpu kRtx5090{"RTX 5090", 12, 0, 170, 99 * 1024, std::size_t{32} << 30};
inline const std::vector<Gpu> kKinds{kA100, kRtx3090, kRtx4060, kH200, kB200, kRtx5090};

/// One that computes, like the newest that the program has PTX for but with few multiprocessors, so
/// that all their blocks can run at a time; a name that is empty if there is no PTX.
Gpu computing_gpu();

/// From now on these are the machine's, and the first is current; what was done before is
/// forgotten. There are always kGpus, some like the last that is named: libraries remember how many
/// there were.
inline constexpr std::size_t kGpus = 3;
void set_gpus(std::vector<Gpu> gpus);

/// Until the next set_gpus() CUDA does not start, with this cudaError_t.
void fail_to_start(int error);

/// What a program has asked of all GPUs.
struct Asked {
  int launches = 0;     // of kernels and matrix products
  int allocations = 0;  // of their memory, and frees
  int waits = 0;        // until a GPU has done something
};
Asked asked();

/// The kernels that were launched, with names as the compiler has them, in order.
const std::vector<std::string>& launched();

}  // namespace carope::fake
