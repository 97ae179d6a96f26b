#include "ops/embedding.h"

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/sequence.cuh"

namespace carope::cuda {
namespace {

constexpr int kWarps = 4;  // of a block
constexpr int kThreads = kWarps * kWarp;

/// The index of the running warp in its grid.
__device__ std::int64_t warp_index() {
  return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
}

unsigned blocks_of_warps(std::int64_t warps) {
  return static_cast<unsigned>(ceil_div<std::int64_t>(warps, kWarps));
}

/// A warp copies a row, in units of any type.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    copy_rows(const Unit* __restrict__ table, const std::int32_t* tokens, Unit* __restrict__ out,
              std::int64_t count, int units) {
  const std::int64_t n = warp_index();
  if (n >= count) {
    return;
  }
  const Unit* from = table + std::int64_t{tokens[n]} * units;
  Unit* to = out + n * units;
#pragma unroll 4
  for (int i = threadIdx.x % kWarp; i < units; i += kWarp) {
    to[i] = from[i];
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_position_rows(const float* table, Positions positions, T* x, std::int64_t tokens,
                      int width) {
  const std::int64_t n = warp_index();
  if (n >= tokens) {
    return;
  }
  const float* from = table + positions.of(n) * width;
  T* row = x + n * width;
  for (int c = threadIdx.x % kWarp * kWidth; c < width; c += kWarp * kWidth) {
    float values[kWidth], added[kWidth];
    unpack(Vec<T, kWidth>::load(row + c), values);
    load_floats(from + c, added);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] += added[k];
    }
    pack<T>(values).store(row + c);
  }
}

template <int kWidth>
__device__ void add_floats(const float (&values)[kWidth], float* to) {
  float total[kWidth];
  load_floats(to, total);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    total[k] += values[k];
  }
  store_floats(total, to);
}

/// sum += the `count` vectors that begin at from, from + stride, ..., in this order.
template <class T, int kWidth>
__device__ void add_up(const T* from, std::int64_t stride, std::int64_t count,
                       float (&sum)[kWidth]) {
  constexpr int kUnroll = 8;  // loads in flight
  for (std::int64_t base = 0; base < count; base += kUnroll) {
    Vec<T, kWidth> loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + u < count) {
        loaded[u] = Vec<T, kWidth>::load(from + (base + u) * stride);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (base + u < count) {
        float values[kWidth];
        unpack(loaded[u], values);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          sum[k] += values[k];
        }
      }
    }
  }
}

/// Without documents, the tokens at a position are one of each sequence: a thread adds up its
/// columns of them.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_batch(const T* dx, std::int64_t batch, std::int64_t length, int width, float* dtable) {
  const int parts = width / kWidth;
  const std::int64_t item = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t t = item / parts;
  if (t >= length) {
    return;
  }
  const std::int64_t element = t * width + item % parts * kWidth;
  float sum[kWidth] = {};
  add_up(dx + element, length * width, batch, sum);
  add_floats(sum, dtable + element);
}

// Adding rows to the table rows that keys name, in a fixed order: the rows are sorted by key, and
// the sorted list is cut into chunks of one row a lane. A warp adds up its columns of each run of
// equal keys in a chunk. A run that crosses edges of chunks leaves a share in each, and one warp
// adds those: so that no warp waits for the many rows of a frequent token.
constexpr int kChunk = kWarp;

template <class T>
struct Scatter {
  const T* rows;               // [count, width]
  const std::uint32_t* keys;   // [count] sorted
  const std::uint32_t* index;  // [count] of each key's row
  float* table;                // [keys, width]
  float* shares;               // [chunks, 2, width]
  int count;
  int width;

  /// Of the run that came into a chunk.
  __device__ float* share_of_first(std::int64_t chunk) const { return shares + 2 * chunk * width; }
  /// Of the run that begins in a chunk and leaves it.
  __device__ float* share_of_last(std::int64_t chunk) const {
    return share_of_first(chunk) + width;
  }
};

/// Which part of the work a warp has.
struct Part {
  std::int64_t chunk;
  int column;  // the first of the lane's

  template <int kWidth>
  __device__ static Part of_warp(int width) {
    constexpr int kColumns = kWarp * kWidth;
    const int slices = (width + kColumns - 1) / kColumns;
    const std::int64_t warp = warp_index();
    const int lane = threadIdx.x % kWarp;
    return {warp / slices, static_cast<int>(warp % slices) * kColumns + lane * kWidth};
  }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) add_runs(const Scatter<T> args) {
  constexpr int kUnroll = 8;  // loads in flight a lane
  const auto [chunk, column] = Part::of_warp<kWidth>(args.width);
  const std::int64_t begin = chunk * kChunk;
  if (begin >= args.count) {
    return;
  }
  const int lane = threadIdx.x % kWarp;
  const int entries = static_cast<int>(min(std::int64_t{kChunk}, args.count - begin));
  const int last = entries - 1;
  const bool has_columns = column < args.width;  // every lane shuffles, even if it has none
  const std::uint32_t key = args.keys[begin + min(lane, last)];
  const std::uint32_t index = args.index[begin + min(lane, last)];
  const std::uint32_t next = __shfl_down_sync(kAllLanes, key, 1);
  const unsigned run_ends = __ballot_sync(kAllLanes, lane == last || key != next);
  const bool comes_in = begin > 0 && args.keys[begin - 1] == args.keys[begin];
  const bool goes_on =
      begin + entries < args.count && args.keys[begin + entries] == args.keys[begin + last];

  float sum[kWidth] = {};
  bool first_run = true;
  for (int base = 0; base < entries; base += kUnroll) {
    Vec<T, kWidth> loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::uint32_t row = __shfl_sync(kAllLanes, index, base + u);
      if (has_columns && base + u < entries) {
        loaded[u] = Vec<T, kWidth>::load(args.rows + std::int64_t{row} * args.width + column);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int entry = base + u;
      if (entry < entries) {
        float values[kWidth];
        unpack(loaded[u], values);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          sum[k] += values[k];
        }
        if ((run_ends >> entry & 1) != 0) {
          const std::int64_t run_key = __shfl_sync(kAllLanes, key, entry);
          if (has_columns) {
            if (first_run && comes_in) {
              store_floats(sum, args.share_of_first(chunk) + column);
            } else if (entry == last && goes_on) {
              store_floats(sum, args.share_of_last(chunk) + column);
            } else {
              add_floats(sum, args.table + run_key * args.width + column);
            }
          }
          first_run = false;
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            sum[k] = 0.0F;
          }
        }
      }
    }
  }
}

/// Adds the shares of the run that begins in the warp's chunk and leaves it, if there is one.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) add_shares(const Scatter<T> args) {
  const auto [chunk, column] = Part::of_warp<kWidth>(args.width);
  const std::int64_t begin = chunk * kChunk;
  const std::int64_t end = begin + kChunk;
  if (end >= args.count || args.keys[end] != args.keys[end - 1]) {
    return;
  }
  const std::uint32_t key = args.keys[end];
  if (begin > 0 && args.keys[begin - 1] == key) {
    return;  // it began earlier
  }
  std::int64_t after = chunk + 1;  // the run's last chunk
  for (unsigned more = kAllLanes; more == kAllLanes;) {
    const std::int64_t first = (after + 1 + threadIdx.x % kWarp) * kChunk;
    more = __ballot_sync(kAllLanes, first < args.count && args.keys[first] == key);
    after += __popc(more);  // keys are sorted: the lanes that see this one are the first
  }
  if (column >= args.width) {
    return;
  }
  float sum[kWidth];
  load_floats(args.share_of_last(chunk) + column, sum);
  const float* shares = args.share_of_first(chunk + 1) + column;
  add_up(shares, 2 * std::int64_t{args.width}, after - chunk, sum);
  add_floats(sum, args.table + std::int64_t{key} * args.width + column);
}

/// Keys and the indices of their rows, [count] each: as they come, and sorted by key.
struct Lists {
  std::uint32_t *keys, *index, *sorted_keys, *sorted_index;
};

/// The keys are tokens or, where there are none, positions.
__global__ void list_rows(const std::int32_t* tokens, Positions positions, int count,
                          std::uint32_t* keys, std::uint32_t* index) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x;
  if (n < count) {
    keys[n] = static_cast<std::uint32_t>(tokens != nullptr ? tokens[n] : positions.of(n));
    index[n] = n;
  }
}

template <class T, int kWidth>
void add_sorted(Context& ctx, const Scatter<T>& args) {
  const std::int64_t chunks = ceil_div<std::int64_t>(args.count, kChunk);
  const int slices = ceil_div<int>(args.width, kWarp * kWidth);
  const unsigned blocks = blocks_of_warps(chunks * slices);
  add_runs<T, kWidth><<<blocks, kThreads, 0, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
  add_shares<T, kWidth><<<blocks, kThreads, 0, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
}

/// table[key of row n] += rows[n].
void scatter_add(Context& ctx, const std::int32_t* tokens, const Sequence& seq, const Tensor& rows,
                 const Tensor& table) {
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
  check<ShapeError>(rows.rows() <= kMaxRows, "{} rows are too many to sort; use smaller batches",
                    rows.rows());
  const auto count = static_cast<int>(rows.rows());
  const auto width = static_cast<int>(table.cols());
  const int bits = std::max<int>(1, std::bit_width(static_cast<std::uint64_t>(table.dim(0) - 1)));
  const auto sort = [&](void* space, std::size_t& bytes, const Lists& lists) {
    CUDA_CHECK(cub::DeviceRadixSort::SortPairs(space, bytes, lists.keys, lists.sorted_keys,
                                               lists.index, lists.sorted_index, count, 0, bits,
                                               stream_of(ctx)));
  };
  std::size_t sort_bytes = 0;
  sort(nullptr, sort_bytes, {});  // only says how much it needs

  // One piece of scratch for the shares, the space to sort in, and the lists.
  constexpr std::int64_t kAlignment = Memory::kAlignment / sizeof(float);
  const auto aligned = [](std::int64_t words) { return ceil_div(words, kAlignment) * kAlignment; };
  const std::int64_t shares = aligned(ceil_div<std::int64_t>(count, kChunk) * 2 * width);
  const std::int64_t space = aligned(ceil_div<std::int64_t>(sort_bytes, sizeof(float)));
  const std::int64_t list = aligned(count);
  auto* const scratch = data_of<float>(ctx.scratch({{shares + space + 4 * list}}));
  auto* const first = reinterpret_cast<std::uint32_t*>(scratch + shares + space);
  const Lists lists{first, first + list, first + 2 * list, first + 3 * list};

  constexpr int kBlock = 256;
  list_rows<<<ceil_div(count, kBlock), kBlock, 0, stream_of(ctx)>>>(tokens, Positions(seq), count,
                                                                    lists.keys, lists.index);
  CUDA_CHECK_LAUNCH();
  sort(scratch + shares, sort_bytes, lists);
  visit_float(rows.dtype(), [&](auto type) {
    using T = decltype(type);
    const Scatter<T> args{.rows = data_of<T>(rows),
                          .keys = lists.sorted_keys,
                          .index = lists.sorted_index,
                          .table = table.f32(),
                          .shares = scratch,
                          .count = count,
                          .width = width};
    if (width % kLanesOf<T> == 0 && aligned16(args.rows, args.table)) {
      add_sorted<T, kLanesOf<T>>(ctx, args);
    } else {
      add_sorted<T, 1>(ctx, args);
    }
  });
}

}  // namespace

void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out) {
  check<ShapeError>(table.dtype() == out.dtype(), "a table of {} cannot be looked up to give {}",
                    to_string(table.dtype()), to_string(out.dtype()));
  const auto copy = [&](auto unit) {
    using Unit = decltype(unit);
    const std::size_t row_bytes = static_cast<std::size_t>(table.cols()) * size_of(table.dtype());
    copy_rows<<<blocks_of_warps(tokens.size()), kThreads, 0, stream_of(ctx)>>>(
        data_of<const Unit>(table), tokens.data<std::int32_t>(), data_of<Unit>(out), tokens.size(),
        static_cast<int>(row_bytes / sizeof(Unit)));
    CUDA_CHECK_LAUNCH();
  };
  visit_float(table.dtype(), [&](auto type) {
    using T = decltype(type);
    if (table.cols() % kLanesOf<T> == 0 && aligned16(table.raw(), out.raw())) {
      copy(uint4{});
    } else {
      copy(type);
    }
  });
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dout,
                        const Tensor& dtable) {
  scatter_add(ctx, tokens.data<std::int32_t>(), {}, dout, dtable);
}

void add_positions(Context& ctx, const Sequence& seq, const Tensor& table, const Tensor& x) {
  visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto width = static_cast<int>(x.cols());
    const bool wide = width % kLanesOf<T> == 0 && aligned16(x.raw(), table.raw());
    const auto kernel = wide ? add_position_rows<T, kLanesOf<T>> : add_position_rows<T, 1>;
    kernel<<<blocks_of_warps(seq.tokens()), kThreads, 0, stream_of(ctx)>>>(
        table.f32(), Positions(seq), data_of<T>(x), seq.tokens(), width);
    CUDA_CHECK_LAUNCH();
  });
}

void add_positions_backward(Context& ctx, const Sequence& seq, const Tensor& dx,
                            const Tensor& dtable, Write write) {
  if (write == Write::kOverwrite) {
    carope::clear(ctx, dtable);
  }
  if (seq.document_start || seq.offsets) {
    scatter_add(ctx, nullptr, seq, dx, dtable);
    return;
  }
  visit_float(dx.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto width = static_cast<int>(dx.cols());
    const auto run = [&](auto* kernel, int columns) {
      const std::int64_t items = seq.length * (width / columns);
      kernel<<<ceil_div<std::int64_t>(items, kThreads), kThreads, 0, stream_of(ctx)>>>(
          data_of<T>(dx), seq.batch, seq.length, width, dtable.f32());
      CUDA_CHECK_LAUNCH();
    };
    if (width % kLanesOf<T> == 0 && aligned16(dx.raw(), dtable.raw())) {
      run(add_batch<T, kLanesOf<T>>, kLanesOf<T>);
    } else {
      run(add_batch<T, 1>, 1);
    }
  });
}

}  // namespace carope::cuda
