#include "ops/cuda/early_start.cuh"
#include "ops/cuda/rotate.cuh"
#include "ops/cuda/sequence.cuh"

namespace carope::cuda {
namespace {

/// Heads a thread rotates by the same angles: it loads 128 bytes before it uses any.
template <class T>
constexpr int kHeads = 8 / sizeof(T);

struct RotaryArgs {
  HeadShape shape;
  const std::uint32_t* increments;     // [P]
  const std::int32_t* document_start;  // [B, T] or null
  int length;                          // T
  Offset offset;
  int heads;  // of q and k together
  Direction direction;
};

/// A block takes some tokens of one row and, of those, a few heads.
template <class T, Access kAccess>
__global__ void __launch_bounds__(kRotaryThreads, 3)
    rotary_kernel(const RotaryArgs args, int blocks_per_row, T* qkv) {
  let_next_begin();
  wait_for_previous();
  const int groups = args.shape.groups();
  const int tokens = kRotaryThreads / groups;  // a block
  const int group = static_cast<int>(threadIdx.x) % groups;
  const int slot = static_cast<int>(threadIdx.x) / groups;
  const auto row = static_cast<int>(blockIdx.x) / blocks_per_row;
  const int t = static_cast<int>(blockIdx.x) % blocks_per_row * tokens + slot;
  if (slot >= tokens || t >= args.length) {
    return;
  }
  const std::int64_t n = static_cast<std::int64_t>(row) * args.length + t;
  const int width = 2 * args.shape.pairs;  // D
  const int first = static_cast<int>(blockIdx.y) * kHeads<T>;
  T* head = qkv + n * (args.heads / 2 * 3 * width) + first * width;

  Group<T, kAccess> values[kHeads<T>];
#pragma unroll
  for (int i = 0; i < kHeads<T>; ++i) {
    if (first + i < args.heads) {
      values[i] = Group<T, kAccess>::load(head + i * width, args.shape, group);
    }
  }

  const int start = args.document_start == nullptr ? 0 : args.document_start[n];
  const auto steps = static_cast<std::uint32_t>(args.offset.value() + t - start + 1);
  std::uint32_t phase[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const int pair = group * kGroup + i;
    phase[i] = pair < args.shape.pairs ? steps * args.increments[pair] : 0;
  }
  const Rotation rotation = Rotation::by<T>(phase, args.direction);

#pragma unroll
  for (int i = 0; i < kHeads<T>; ++i) {
    if (first + i < args.heads) {
      rotation.apply(values[i]);
      values[i].store(head + i * width, args.shape, group);
    }
  }
}

}  // namespace

void rotary(Context& ctx, const Rotary& rotary, const Sequence& seq, Direction direction,
            const Tensor& qkv) {
  const HeadShape shape(rotary.increments.size(), rotary.layout);
  const RotaryArgs args{
      .shape = shape,
      .increments = rotary.increments.data<std::uint32_t>(),
      .document_start = seq.document_start ? seq.document_start.data<std::int32_t>() : nullptr,
      .length = static_cast<int>(seq.length),
      .offset = Offset(seq),
      .heads = static_cast<int>(2 * rotary.heads),
      .direction = direction};
  const int blocks_per_row = ceil_div(args.length, kRotaryThreads / shape.groups());
  visit_groups({qkv}, shape, [&](auto zero, auto access) {
    using T = decltype(zero);
    const dim3 grid(static_cast<unsigned>(blocks_per_row * seq.batch),
                    static_cast<unsigned>(ceil_div(args.heads, kHeads<T>)));
    launch_early(ctx, rotary_kernel<T, access.value>, grid, kRotaryThreads, args, blocks_per_row,
                 data_of<T>(qkv));
  });
}

}  // namespace carope::cuda
