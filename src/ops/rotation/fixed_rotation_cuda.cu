#include "ops/cuda/early_start.cuh"
#include "ops/rotation/rotate.cuh"

namespace carope::cuda {
namespace {

/// Heads a thread rotates by the same angles: it loads 128 bytes before it uses any.
template <class T>
constexpr int kHeads = 8 / sizeof(T);

/// Blocks that are to fit on a multiprocessor: as many as registers allow without spilling.
template <class T, Access kAccess>
constexpr int kBlocks = sizeof(T) == 4 && kAccess == Access::kInterleaved ? 4 : 3;

/// A block takes some tokens of one row and, of those, a few heads: those of q and then those of k.
template <class T, Access kAccess>
__global__ void __launch_bounds__(kRotaryThreads, kBlocks<T, kAccess>)
    rotate_kernel(const RotationArgs args, const HeadRows q, const HeadRows k, Direction direction,
                  int blocks_per_row) {
  let_next_begin();
  wait_for_previous();
  const int groups = args.head.groups();
  const int tokens = kRotaryThreads / groups;  // a block
  const int group = static_cast<int>(threadIdx.x) % groups;
  const int slot = static_cast<int>(threadIdx.x) / groups;
  const auto row = static_cast<int>(blockIdx.x) / blocks_per_row;
  const int t = static_cast<int>(blockIdx.x) % blocks_per_row * tokens + slot;
  if (slot >= tokens || t >= args.positions.length) {
    return;
  }
  const int first = static_cast<int>(blockIdx.y) * kHeads<T>;
  const int heads = q.count + k.count;
  const auto head = [&](int i) {
    return i < q.count ? q.at<T>(row, t, i) : k.at<T>(row, t, i - q.count);
  };

  Group<T, kAccess> values[kHeads<T>];
  T* at[kHeads<T>];
#pragma unroll
  for (int i = 0; i < kHeads<T>; ++i) {
    if (first + i < heads) {
      at[i] = head(first + i);
      values[i] = Group<T, kAccess>::load(at[i], args.head, group);
    }
  }

  const auto steps = static_cast<std::uint32_t>(args.positions.of(row, t) + 1);
  std::uint32_t phase[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int pair = group * kGroup + i;
    phase[i] = pair < args.head.pairs ? steps * args.increments[pair] : 0;
  }
  const auto rotation = GroupRotation::by<T>(phase, direction, args.magnitude);

#pragma unroll
  for (int i = 0; i < kHeads<T>; ++i) {
    if (first + i < heads) {
      rotation.apply(values[i]);
      values[i].store(at[i], args.head, group);
    }
  }
}

void rotate_by_position(Context& ctx, const Rotation& rotation, const Sequence& seq,
                        Direction direction, const Heads& q, const Heads& k) {
  const RotationArgs args(rotation, seq);
  const int blocks_per_row = ceil_div(args.positions.length, kRotaryThreads / args.head.groups());
  visit_groups({q, k}, args.head, [&](auto zero, auto access) {
    using T = decltype(zero);
    const dim3 grid(static_cast<unsigned>(blocks_per_row * args.batch),
                    static_cast<unsigned>(ceil_div(args.q.count + args.k.count, kHeads<T>)));
    launch_early(ctx, rotate_kernel<T, access.value>, grid, kRotaryThreads, args, HeadRows(q),
                 HeadRows(k), direction, blocks_per_row);
  });
}

}  // namespace

void rotate_fixed(Context& ctx, const Rotation& rotation, const Sequence& seq) {
  rotate_by_position(ctx, rotation, seq, Direction::kForward, rotation.q, rotation.k);
}

void rotate_fixed_backward(Context& ctx, const Rotation& rotation, const Sequence& seq,
                           const RotationGradients& gradients) {
  rotate_by_position(ctx, rotation, seq, Direction::kBackward, gradients.dq, gradients.dk);
}

}  // namespace carope::cuda
