#include "ops/carope/carope_gate_warp.cuh"

// dz(t) = -f σ(z) Σ_p e f^e G_p(t) with e = p + exponent_start, where G_p(t) sums the torque on
// pair p from token t to the end of its document. That is a polynomial in f whose coefficients are
// running sums, so no power needs to be computed. Where there is a warp's work for every scheduler,
// warps go through heads on their own (carope_gate_warp.cuh); here is what serves any shape and
// type, and puts a whole block to a head. Sums over runs of tokens are fp32, sums of those fp64.
namespace carope::cuda {
namespace {

constexpr int kThreads = kScanThreads;
static_assert(kMaxRotaryPairs / kGroup <= kThreads, "a tile must have room for a run");

/// A block has one head of one row and goes through it tile by tile, from the end. A thread has a
/// group of pairs over one run of a tile's tokens.
struct BlockArgs : GateArgs {
  int pairs;
  int groups;
  int row;     // floats a run has in shared memory: an odd number of groups, so that four runs that
               // are read at once are in different banks
  int tokens;  // in a tile

  BlockArgs(const GateArgs& args, std::int64_t count)
      : GateArgs(args),
        pairs(static_cast<int>(count)),
        groups((pairs + kGroup - 1) / kGroup),
        row((groups | 1) * kGroup),
        tokens(kThreads / groups * kRun) {}
};

struct alignas(16) GateToken {
  float frequency;  // f
  float eighth;     // f^8
  float scale;      // -f σ(z) f^exponent_start
  int start;        // of its document, from the tile's first token on
};

/// What a block keeps of a tile in shared memory.
struct GateTile {
  static constexpr int kMostRuns = kThreads;
  // One place a run is left out, so that the same token of eight runs is in different banks.
  GateToken tokens[kMostRuns * (kRun + 1)];
  // [runs][row]: first what each run passes on to the run before, then what follows it in the
  // document of its last token, each by pair; then the polynomials' parts, by group and token. Two
  // groups take the most room.
  alignas(16) float sums[kMostRuns / 2 * 3 * kGroup];
  double later[kMaxRotaryPairs];  // what follows the tile, then what follows its begin

  __device__ GateToken* run(int index) { return tokens + index * (kRun + 1); }
  __device__ GateToken& token(int t) { return run(t / kRun)[t % kRun]; }
  /// Whether the document of a token began before its run.
  __device__ bool continues(int t) { return token(t).start < t / kRun * kRun; }
};

/// Fills the tile's tokens; those past `count` have no gate, and begin no document.
__device__ void load_tokens(GateTile& tile, const BlockArgs& args, std::int64_t first, int head,
                            int begin, int count) {
  for (int t = static_cast<int>(threadIdx.x); t < args.tokens; t += kThreads) {
    GateToken token{0.0F, 0.0F, 0.0F, INT_MIN};
    if (t < count) {
      const Gate gate = gate_of(args.logits[(first + t) * args.heads + head]);
      const Squares f = Squares::of(gate.frequency);
      double scale = -gate.slope;
      for (int i = 0; i < args.exponent_start; ++i) {
        scale *= f.first;
      }
      token = {static_cast<float>(f.first), static_cast<float>(f.eighth), static_cast<float>(scale),
               args.document_start == nullptr ? INT_MIN : args.document_start[first + t] - begin};
    }
    tile.token(t) = token;
  }
}

/// The torque on a group of pairs over a run, as it is in memory: registers for all of it, so that
/// it is read once, and all at once.
template <class T, bool kWide>
struct Run {
  RawRow<T, kGroup> rows[kRun];

  /// From the run's first token on; `stride` leads to the next. There are zeros at `pairs`, at
  /// `tokens` and past them.
  __device__ Run(const T* from, std::int64_t stride, int pairs, int tokens) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      rows[i] = {};
      if constexpr (kWide) {
        if (i < tokens) {
          rows[i] = RawRow<T, kGroup>::load(from + i * stride);
        }
      } else {
        Vec<T, kGroup> row;
#pragma unroll
        for (int k = 0; k < kGroup; ++k) {
          row.at[k] = i < tokens && k < pairs ? from[i * stride + k] : from_float<T>(0.0F);
        }
        memcpy(&rows[i], &row, sizeof(row));
      }
    }
  }
};

/// What a run passes on to the run before.
template <class T, bool kWide>
__device__ void sum_run(const Run<T, kWide>& run, const GateToken* tokens, int first, float* to) {
  float sum[kGroup] = {};
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (tokens[i].start < first) {
      float torque[kGroup];
      unpack(run.rows[i], torque);
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        sum[k] += torque[k];
      }
    }
  }
  store_floats(sum, to);
}

/// Sums the runs from the last one on. Some are read at once: each would wait for the one before.
__device__ void join_runs_backward(GateTile& tile, const BlockArgs& args, int count) {
  constexpr int kAtOnce = 8;
  for_own_pairs(args.pairs, [&](int pair) {
    double later = tile.later[pair];
    for (int top = (count - 1) / kRun; top >= 0; top -= kAtOnce) {
      float passed[kAtOnce];
      bool continues[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int run = max(top - i, 0);
        passed[i] = tile.sums[run * args.row + pair];
        continues[i] = tile.continues(min((run + 1) * kRun, count) - 1);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (top >= i) {
          tile.sums[(top - i) * args.row + pair] = static_cast<float>(later);
          later = passed[i] + (continues[i] ? later : 0.0);
        }
      }
    }
    tile.later[pair] = later;
  });
}

/// For every token of a run, Σ e G_p f^k over the pairs p of a group, of which p is the k-th.
/// `exponent` is the group's first; `sums` has what follows the run, and gets the results.
template <class T, bool kWide>
__device__ void sum_pairs(const Run<T, kWide>& run, const GateToken* tokens, int first,
                          int exponent, float* sums) {
  float sum[kGroup];  // e G_p
  load_floats(sums, sum);
#pragma unroll
  for (int k = 0; k < kGroup; ++k) {
    sum[k] *= static_cast<float>(exponent + k);
  }
  float parts[kRun];
#pragma unroll
  for (int i = kRun - 1; i >= 0; --i) {
    const GateToken token = tokens[i];
    float torque[kGroup];
    unpack(run.rows[i], torque);
    parts[i] = 0.0F;
#pragma unroll
    for (int k = kGroup - 1; k >= 0; --k) {
      sum[k] = fmaf(static_cast<float>(exponent + k), torque[k], sum[k]);
      parts[i] = fmaf(parts[i], token.frequency, sum[k]);
    }
    if (token.start == first + i) {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        sum[k] = 0.0F;
      }
    }
  }
  store_floats(parts, sums);
}

/// Joins the parts of each token's polynomial.
__device__ void store_gates(GateTile& tile, const BlockArgs& args, std::int64_t first, int head,
                            int count) {
  for (int t = static_cast<int>(threadIdx.x); t < count; t += kThreads) {
    const GateToken token = tile.token(t);
    const float* parts = tile.sums + t / kRun * args.row + t % kRun;
    float total = 0.0F;
    for (int group = args.groups - 1; group >= 0; --group) {
      total = fmaf(total, token.eighth, parts[group * kGroup]);
    }
    args.dlogits[(first + t) * args.heads + head] = token.scale * total;
  }
}

template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 && kWide ? 6 : 3)
    gate_backward_kernel(const BlockArgs args, const T* torque) {
  static_assert(kGroup == kRun, "a thread's sums and its parts share their place");
  __shared__ GateTile tile;
  const int head = static_cast<int>(blockIdx.x) % args.heads;
  const std::int64_t row_begin =
      static_cast<std::int64_t>(static_cast<int>(blockIdx.x) / args.heads) * args.length;
  const int group = static_cast<int>(threadIdx.x) % args.groups;
  const int run = static_cast<int>(threadIdx.x) / args.groups;
  const int first = run * kRun;
  const bool works = first < args.tokens;
  const std::int64_t stride = static_cast<std::int64_t>(args.heads) * args.pairs;
  const T* own = torque + (row_begin + first) * stride + head * args.pairs + group * kGroup;
  const GateToken* tokens = tile.run(run);
  float* sums = tile.sums + run * args.row + group * kGroup;
  for_own_pairs(args.pairs, [&](int pair) { tile.later[pair] = 0.0; });
  for (int begin = (args.length - 1) / args.tokens * args.tokens; begin >= 0;
       begin -= args.tokens) {
    const int count = min(args.tokens, args.length - begin);
    const Run<T, kWide> values(own + begin * stride, stride, args.pairs - group * kGroup,
                               works ? count - first : 0);
    if (kWide && works && begin > 0) {  // the next tile comes while this one is summed
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        prefetch_l2(own + (begin - args.tokens + i) * stride);
      }
    }
    __syncthreads();  // others may still read the tile before
    load_tokens(tile, args, row_begin + begin, head, begin, count);
    __syncthreads();
    if (works) {
      sum_run(values, tokens, first, sums);
    }
    __syncthreads();
    join_runs_backward(tile, args, count);
    __syncthreads();
    if (works) {
      sum_pairs(values, tokens, first, args.exponent_start + group * kGroup, sums);
    }
    __syncthreads();
    store_gates(tile, args, row_begin + begin, head, count);
  }
}

constexpr int kGateWarps = 4;

/// A warp has one head of one row.
__global__ void __launch_bounds__(kGateWarps* kWarp, 4)
    gate_warp_kernel(const GateArgs args, const bf16* torque, int rows) {
  static_assert(kRun % kLaneGroups == 0, "each lane must have some tokens of a run");
  const LanePlace place;
  const int task = static_cast<int>(blockIdx.x * kGateWarps + threadIdx.x / kWarp);
  if (task >= rows * args.heads) {
    return;
  }
  const GateRow row{args, torque, static_cast<std::int64_t>(task / args.heads) * args.length,
                    task % args.heads};
  int begin = (args.length - 1) / kWarpTokens * kWarpTokens;  // the same for all lanes, and seen so
  LaneTile next;
  next.load(row, place, begin + place.run * kRun);
  Following following;
  for (; begin >= 0; begin -= kWarpTokens) {
    const LaneTile tile = next;
    const int first = begin + place.run * kRun;
    if (begin > 0) {
      next.load(row, place, first - kWarpTokens);
    }
    float sum[kGroup];
    const bool through = tile.scan(place, sum);
    following.pass(place, through, sum);
    tile.finish(row, place, first, sum);
  }
}

template <class T>
void launch_blocks(const Context& ctx, const BlockArgs& args, const T* torque, unsigned blocks) {
  const bool wide = args.pairs % kGroup == 0 &&
                    reinterpret_cast<std::uintptr_t>(torque) % (kGroup * sizeof(T)) == 0;
  const auto kernel = wide ? gate_backward_kernel<T, true> : gate_backward_kernel<T, false>;
  kernel<<<blocks, kThreads, 0, stream_of(ctx)>>>(args, torque);
  CUDA_CHECK_LAUNCH();
}

}  // namespace

void carope_gate_backward(Context& ctx, const Carope& carope, const Sequence& seq,
                          const Tensor& logits, const Tensor& torque, const Tensor& dlogits) {
  constexpr std::int64_t kEnoughWarps = 512;  // for each scheduler of a large GPU
  const GateArgs args{
      .logits = logits.f32(),
      .document_start = seq.document_start ? seq.document_start.data<std::int32_t>() : nullptr,
      .dlogits = dlogits.f32(),
      .heads = static_cast<int>(carope.heads),
      .length = static_cast<int>(seq.length),
      .exponent_start = static_cast<int>(carope.exponent_start)};
  const std::int64_t heads = seq.batch * carope.heads;
  if (torque.dtype() == DType::kBF16 && torque.cols() == kWarpPairs && heads >= kEnoughWarps &&
      aligned16(data_of<bf16>(torque))) {
    const auto blocks = static_cast<unsigned>(ceil_div<std::int64_t>(heads, kGateWarps));
    gate_warp_kernel<<<blocks, kGateWarps * kWarp, 0, stream_of(ctx)>>>(
        args, data_of<bf16>(torque), static_cast<int>(seq.batch));
    CUDA_CHECK_LAUNCH();
    return;
  }
  visit_float(torque.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch_blocks(ctx, BlockArgs(args, torque.cols()), data_of<T>(torque),
                  static_cast<unsigned>(heads));
  });
}

}  // namespace carope::cuda
