#include "ops/matmul/matmul_hopper.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "ops/cuda/shares_cuda.h"
#include "ops/matmul/matmul_finish.cuh"
#include "ops/matmul/matmul_multiply.cuh"

// matmul_tiles.cuh says how the parts of the kernel play together.
namespace carope::cuda {
namespace matmul {
namespace {

static_assert(sizeof(SharedMemory) <= 227 * 1024);

__device__ void prepare(SharedMemory& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_at(shared.filled[i]).init(1);
      barrier_at(shared.free[i]).init(kConsumerWarps * kBlocks);
    }
    for (int warp = 0; warp < kConsumerWarps; ++warp) {
      for (int slot = 0; slot < kSlots; ++slot) {
        barrier_at(shared.piece_filled[warp][slot]).init(1);
        barrier_at(shared.piece_free[warp][slot]).init(1);
      }
    }
    publish_barriers();
  }
}

/// Elsewhere than on Hopper an empty kernel, which does not take blocks of this size.
template <Pass kPass>
__global__ void __launch_bounds__(kHopper ? Team<kPass>::kThreads : kWarp, 1)
    multiply(const __grid_constant__ Product p) {
  if constexpr (kHopper) {
    using Team = Team<kPass>;
    extern __shared__ __align__(1024) std::byte memory[];
    SharedMemory& shared = *reinterpret_cast<SharedMemory*>(memory);
    prepare(shared);
    sync_cluster();
    // The same in all lanes, which the compiler must know.
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);
    const auto bring = [&] {
      if (threadIdx.x == Team::kProducer) {
        produce<kPass>(p, shared);
      }
      __syncwarp();
    };
    if (warp < kConsumerWarps) {
      take_registers<Team::kConsumerRegisters>();
      consume<kPass>(p, shared, warp / 4);
    } else if constexpr (kWide<kPass>) {
      leave_registers<Team::kFinisherRegisters>();  // a warpgroup together
      if (warp < kConsumerWarps + Team::kFinishers) {
        Finish<kPass>(p, shared).tiles();
      } else {
        bring();
      }
    } else if (warp < kConsumerWarps + Team::kFinishers) {
      leave_registers<Team::kFinisherRegisters>();
      Finish<kPass>(p, shared).tiles();
    } else {
      leave_registers<Team::kProducerRegisters>();
      bring();
    }
    sync_cluster();  // until then the other blocks may write to this one's shared memory
  }
}

struct Factors {
  const Tensor& left;
  const Tensor& right;
  const Tensor& saved;  // or empty, of powers
  const Tensor& result;
  const Tensor& bias;  // or empty
};

/// Whether a result of so many rows and columns, in pieces of `whole`, and sums over `depth` are
/// whole tiles.
bool has_whole_tiles(std::int64_t rows, std::int64_t depth, std::int64_t columns, int whole) {
  constexpr std::int64_t kMost = 1 << 26;
  return rows > 0 && rows % (kRows * kBlocks) == 0 && columns % whole == 0 && depth % kDepth == 0 &&
         depth >= kPieces * kDepth && rows < kMost && columns < kMost;
}

/// Whether this kernel can make the product. The columns of powers need not fill their last tile.
template <Pass kPass>
bool is_served(const Factors& f) {
  for (const Tensor* tensor : {&f.left, &f.right, &f.saved, &f.result, &f.bias}) {
    if (*tensor && (tensor->dtype() != DType::kBF16 || !aligned16(tensor->raw()))) {
      return false;
    }
  }
  constexpr int kWhole = kPass == Pass::kPowers ? kPieceCols : kCols;
  return has_whole_tiles(f.left.rows(), f.left.cols(), f.result.cols(), kWhole);
}

/// How the kernel is launched with so many clusters.
template <Pass kPass>
class Launch {
 public:
  Launch(const Context& ctx, int clusters) {
    cluster_.id = cudaLaunchAttributeClusterDimension;
    cluster_.val.clusterDim = {kBlocks, 1, 1};
    config_.gridDim = dim3(clusters * kBlocks);
    config_.blockDim = dim3(Team<kPass>::kThreads);
    config_.dynamicSmemBytes = sizeof(SharedMemory);
    config_.stream = stream_of(ctx);
    config_.attrs = &cluster_;
    config_.numAttrs = 1;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  const cudaLaunchConfig_t* config() const { return &config_; }

 private:
  cudaLaunchAttribute cluster_{};
  cudaLaunchConfig_t config_{};
};

/// Whether this kernel runs on the current device.
template <Pass kPass>
bool runs() {
  cudaFuncAttributes compiled{};
  CUDA_CHECK(cudaFuncGetAttributes(&compiled, multiply<kPass>));
  return compiled.maxThreadsPerBlock >= Team<kPass>::kThreads;
}

/// How many clusters the GPU holds at a time: none where this kernel does not run. Asking takes
/// longer than launching it.
template <Pass kPass>
struct Room {
  explicit Room(const Context& ctx) {
    constexpr auto kernel = multiply<kPass>;
    if (runs<kPass>()) {
      CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(sizeof(SharedMemory))));
      CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, Launch<kPass>(ctx, 1).config()));
    }
  }

  int clusters = 0;
};

template <Pass kPass>
void launch(Context& ctx, int clusters, const Product& product) {
  CUDA_CHECK(cudaLaunchKernelEx(Launch<kPass>(ctx, clusters).config(), multiply<kPass>, product));
}

template <Pass kPass>
bool serves(Context& ctx, const Factors& f) {
  return ctx.state<Room<kPass>>().clusters > 0 && is_served<kPass>(f);
}

/// Makes a product with a GELU, and sums of the result's columns unless `sums` is empty.
template <Pass kPass>
void run(Context& ctx, const Factors& f, bool slopes, const Tensor& sums, Write write) {
  int clusters = ctx.state<Room<kPass>>().clusters;
  const auto rows = static_cast<int>(f.left.rows());
  const auto width = static_cast<int>(f.result.cols());
  const int columns = width / kCols;
  const int tiles = rows / (kRows * kBlocks) * columns;
  clusters = std::min(clusters, tiles);
  const int turns = clusters / std::gcd(clusters, columns);  // of clusters in a column
  const Tensor shares =
      sums ? ctx.scratch({{std::int64_t{turns} * kBlocks * Team<kPass>::kFinishers, width}})
           : Tensor{};
  if (sums && turns * columns > tiles) {
    clear(ctx, shares);  // some have no tile
  }
  const Product product{
      .left = tiles_of(f.left, kRows),
      .right = tiles_of(f.right, kPass == Pass::kBackward ? kDepth : kCols / kBlocks),
      .input = kPass == Pass::kBackward ? tiles_of(f.saved, kRows) : CUtensorMap{},
      .saved = data_of<bf16>(f.saved),
      .slopes = slopes,
      .result = data_of<bf16>(f.result),
      .bias = f.bias ? data_of<bf16>(f.bias) : nullptr,
      .shifts = nullptr,
      .shares = sums ? shares.f32() : nullptr,
      .rows = rows,
      .width = width,
      .steps = static_cast<int>(f.left.cols() / kDepth),
      .columns = columns,
      .tiles = tiles,
      .period = turns * columns / clusters};
  launch<kPass>(ctx, clusters, product);
  if (sums) {
    add_shares(ctx, shares, std::array{sums}, write);
  }
}

}  // namespace
}  // namespace matmul

bool prefers_slopes(Device device, DType dtype, std::int64_t rows, std::int64_t in,
                    std::int64_t out) {
  using matmul::Pass;
  const CurrentDevice current(device.index);
  return dtype == DType::kBF16 && matmul::runs<Pass::kForward>() &&
         matmul::runs<Pass::kBackward>() && matmul::has_whole_tiles(rows, in, out, matmul::kCols);
}

bool hopper_serves_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const SavedGelu& saved, const Tensor& y) {
  return matmul::serves<matmul::Pass::kForward>(ctx, {x, weight, saved.kept(), y, bias});
}

void hopper_linear_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const SavedGelu& saved, const Tensor& y) {
  matmul::run<matmul::Pass::kForward>(ctx, {x, weight, saved.kept(), y, bias},
                                      static_cast<bool>(saved.slope), {}, Write::kOverwrite);
}

bool hopper_serves_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight,
                                 const SavedGelu& saved, const Tensor& dpre) {
  return matmul::serves<matmul::Pass::kBackward>(ctx, {dy, weight, saved.kept(), dpre, {}});
}

void hopper_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight,
                          const SavedGelu& saved, const Tensor& dpre, const Tensor& dbias,
                          Write write) {
  matmul::run<matmul::Pass::kBackward>(ctx, {dy, weight, saved.kept(), dpre, {}},
                                       static_cast<bool>(saved.slope), dbias, write);
}

static_assert(kColumnsOfShare == matmul::kCols);

bool hopper_makes_powers(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& y) {
  using matmul::Pass;
  return matmul::serves<Pass::kPowers>(ctx, {x, weight, {}, y, {}});
}

void hopper_powers(Context& ctx, const PowerProduct& args) {
  using matmul::Pass;
  const auto rows = static_cast<int>(args.x.rows());
  const auto width = static_cast<int>(args.y.cols());
  const int columns = ceil_div(width, matmul::kCols);
  const int tiles = rows / (matmul::kRows * matmul::kBlocks) * columns;
  const matmul::Product product{.left = tiles_of(args.x, matmul::kRows),
                                .right = tiles_of(args.weight, matmul::kCols / matmul::kBlocks),
                                .input = {},
                                .saved = nullptr,
                                .slopes = false,
                                .result = data_of<bf16>(args.y),
                                .bias = nullptr,
                                .shifts = args.shifts.f32(),
                                .shares = args.shares.f32(),
                                .rows = rows,
                                .width = width,
                                .steps = static_cast<int>(args.x.cols() / matmul::kDepth),
                                .columns = columns,
                                .tiles = tiles,
                                .period = 1};
  const int room = ctx.state<matmul::Room<Pass::kPowers>>().clusters;
  matmul::launch<Pass::kPowers>(ctx, std::min(room, tiles), product);
}

}  // namespace carope::cuda
