#include "ops/cuda/early_start.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/pick_token.h"

namespace carope::cuda {
namespace {

constexpr int kLogits = 64;                               // of a block that is weighed at once
constexpr int kEach = kLogits / static_cast<int>(kWarp);  // of them, in a lane
constexpr int kWeighThreads = 128;
constexpr int kPickThreads = 1024;
constexpr int kPickWarps = kPickThreads / static_cast<int>(kWarp);

/// What choosing among many logits needs to know of each block of them.
struct BlockWeight {
  double highest;  // NaN where a logit is not finite
  double sum;      // of e^((logit - highest) / temperature)
};

struct PickArgs {
  const float* logits;  // those that may be picked
  int count;
  int blocks;
  int first;           // id
  double temperature;  // 0: no sums are needed
  BlockWeight* weights;
  TokenPick* pick;

  __device__ double weight_of(double value, double highest) const {
    return exp((value - highest) / temperature);
  }
};

/// A warp a block of logits.
__global__ void __launch_bounds__(kWeighThreads) weigh_kernel(const PickArgs args) {
  const int block = static_cast<int>((blockIdx.x * kWeighThreads + threadIdx.x) / kWarp);
  if (block >= args.blocks) {
    return;
  }
  const int first = block * kLogits + static_cast<int>(threadIdx.x % kWarp);
  float values[kEach];
  float highest = -INFINITY;
  float zero = 0.0F;  // but for x - x of what is not finite
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = first + i * static_cast<int>(kWarp);
    values[i] = at < args.count ? args.logits[at] : -INFINITY;
    highest = fmaxf(highest, values[i]);
    zero += at < args.count ? values[i] - values[i] : 0.0F;
  }
  highest = warp_max(highest);
  double sum = 0.0;
  if (args.temperature > 0.0) {
#pragma unroll
    for (const float value : values) {
      sum += args.weight_of(value, highest);
    }
    sum = warp_sum(sum);
  }
  zero = warp_sum(zero);
  if (threadIdx.x % kWarp == 0) {
    args.weights[block] = {highest + zero, sum};
  }
}

/// The sum of what the threads of the warp up to this one have.
__device__ double warp_prefix(double x) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const double other = __shfl_up_sync(kAllLanes, x, step);
    x += lane >= step ? other : 0.0;
  }
  return x;
}

/// By one warp: the first logit from block `block` on for which wanted(index, exists, logit) holds,
/// or -1. Every lane calls it, also where there is no logit any more.
template <class Wanted>
__device__ int find_logit(const PickArgs& args, int block, const Wanted& wanted) {
  const auto lane = static_cast<int>(threadIdx.x);
  for (int begin = block * kLogits; begin < args.count; begin += static_cast<int>(kWarp)) {
    const int i = begin + lane;
    const bool exists = i < args.count;
    const unsigned found =
        __ballot_sync(kAllLanes, wanted(i, exists, exists ? args.logits[i] : 0.0F));
    if (found != 0) {
      return begin + __ffs(static_cast<int>(found)) - 1;
    }
  }
  return -1;
}

/// One block has all blocks of logits, each thread some that follow each other.
class Picker {
 public:
  __device__ explicit Picker(const PickArgs& args)
      : args_(args),
        thread_(static_cast<int>(threadIdx.x)),
        each_((args.blocks + kPickThreads - 1) / kPickThreads),
        begin_(min(thread_ * each_, args.blocks)),
        end_(min(begin_ + each_, args.blocks)) {}

  /// The index of the logit that is picked, or -1 minus that of the first that is not finite; right
  /// in the first warp. The first thread has the number that decides.
  __device__ int pick(double uniform) const {
    float highest = -INFINITY;
    int broken = args_.blocks;
    for (int b = begin_; b < end_; ++b) {
      const auto height = static_cast<float>(args_.weights[b].highest);
      broken = isnan(height) ? min(broken, b) : broken;
      highest = fmaxf(highest, height);
    }
    highest = block_max<kPickThreads>(highest);
    broken = first_of(broken);
    if (broken < args_.blocks) {
      return -1 - find([](int, bool exists, float x) { return exists && !isfinite(x); }, broken);
    }
    if (args_.temperature > 0.0) {
      return draw(uniform, highest);
    }
    int peak = args_.blocks;
    for (int b = end_ - 1; b >= begin_; --b) {
      peak = static_cast<float>(args_.weights[b].highest) == highest ? b : peak;
    }
    return find([&](int, bool exists, float x) { return exists && x == highest; }, first_of(peak));
  }

 private:
  template <class Wanted>
  __device__ int find(const Wanted& wanted, int block) const {
    return thread_ < static_cast<int>(kWarp) ? find_logit(args_, block, wanted) : -1;
  }

  /// The least that a thread has.
  __device__ int first_of(int block) const {
    __shared__ int first;
    __syncthreads();  // an earlier call's may still be read
    if (thread_ == 0) {
      first = args_.blocks;
    }
    __syncthreads();
    if (block < args_.blocks) {
      atomicMin(&first, block);
    }
    __syncthreads();
    return first;
  }

  __device__ double sum_of(int block, float highest) const {
    const BlockWeight weight = args_.weights[block];
    return weight.sum * args_.weight_of(weight.highest, highest);
  }

  /// The index of the logit before which `uniform` of all weight lies: the last that has weight if
  /// roundings have left a little. Right in the first warp.
  __device__ int draw(double uniform, float highest) const {
    __shared__ double warp_sums[kPickWarps];
    __shared__ double decides, left_in_block;
    double own = 0.0;
    int last = -1;  // block that has weight
    for (int b = begin_; b < end_; ++b) {
      const double sum = sum_of(b, highest);
      last = sum > 0.0 ? b : last;
      own += sum;
    }
    last = args_.blocks - 1 - first_of(args_.blocks - 1 - last);
    double before = warp_prefix(own);
    if (thread_ % kWarp == kWarp - 1) {
      warp_sums[thread_ / kWarp] = before;
    }
    if (thread_ == 0) {
      decides = uniform;
    }
    __syncthreads();
    before -= own;
    double total = 0.0;
    for (int w = 0; w < kPickWarps; ++w) {
      before += w < thread_ / static_cast<int>(kWarp) ? warp_sums[w] : 0.0;
      total += warp_sums[w];
    }
    double left = decides * total - before;
    int chosen = args_.blocks;
    for (int b = begin_; b < end_; ++b) {
      const double sum = sum_of(b, highest);
      if (left < sum || b == last) {
        chosen = b;
        break;
      }
      left -= sum;
    }
    const int block = first_of(chosen);
    if (chosen == block) {
      left_in_block = left;
    }
    __syncthreads();
    double rest = left_in_block;
    int last_index = -1;  // of what was looked at and has weight
    const int found = find(
        [&](int i, bool exists, float x) {
          const double weight = exists ? args_.weight_of(x, highest) : 0.0;
          const double weights = warp_prefix(weight);
          const bool reached = weight > 0.0 && rest - weights < 0.0;
          rest -= __shfl_sync(kAllLanes, weights, kWarp - 1);
          if (const unsigned some = __ballot_sync(kAllLanes, weight > 0.0); some != 0) {
            last_index = i - thread_ + static_cast<int>(kWarp) - 1 - __clz(static_cast<int>(some));
          }
          return reached;
        },
        block);
    return found >= 0 ? found : last_index;
  }

  const PickArgs& args_;
  int thread_, each_, begin_, end_;
};

__global__ void __launch_bounds__(kPickThreads) pick_kernel(const PickArgs args) {
  wait_for_previous();
  TokenPick& pick = *args.pick;
  // From afar: asked for once, and long before it is needed.
  const double uniform = args.temperature > 0.0 && threadIdx.x == 0 ? pick.uniform : 0.0;
  const int index = Picker(args).pick(uniform);
  if (threadIdx.x == 0) {
    const bool broken = index < 0;
    const int found = broken ? -1 - index : index;
    const int id = args.first + found;
    pick.token = broken ? -1 - id : id;
    pick.logit = args.logits[found];
  }
}

}  // namespace

void pick_token(Context& ctx, const TokenChoice& choice, const Tensor& logits, TokenPick* pick) {
  const std::int64_t blocks = ceil_div<std::int64_t>(choice.count, kLogits);
  const PickArgs args{.logits = logits.f32() + choice.first,
                      .count = static_cast<int>(choice.count),
                      .blocks = static_cast<int>(blocks),
                      .first = static_cast<int>(choice.first),
                      .temperature = choice.temperature,
                      .weights = data_of<BlockWeight>(ctx.scratch({{blocks, 2}, DType::kF64})),
                      .pick = pick};
  const auto grid = static_cast<unsigned>(ceil_div<std::int64_t>(blocks, kWeighThreads / kWarp));
  weigh_kernel<<<grid, kWeighThreads, 0, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
  launch_early(ctx, pick_kernel, dim3(1), dim3(kPickThreads), args);
}

}  // namespace carope::cuda
