#include "ops/token_pass.h"

#include <algorithm>
#include <cmath>

#include "core/arena.h"
#include "ops/token_pass/token_pass_block.cuh"

namespace carope::cuda {
namespace {

/// On devices without copy rings an empty kernel, which does not take blocks of this size.
template <class Shape>
__global__ void __launch_bounds__(kHasCopyRings ? kBlockThreads : static_cast<int>(kWarp), 1)
    token_pass_kernel(const __grid_constant__ PassArgs args) {
  if constexpr (kHasCopyRings) {
    extern __shared__ __align__(128) std::byte shared[];
    PassBlock<Shape>(args, shared).run();
  }
}

using PassKernel = void (*)(PassArgs);

/// The kernel of the first of these shapes that serves a model's.
template <class First, class... Others>
PassKernel kernel_for(const PassShape& shape) {
  if constexpr (sizeof...(Others) > 0) {
    if (!First::serves(shape)) {
      return kernel_for<Others...>(shape);
    }
  }
  return token_pass_kernel<First>;
}

class TokenPassOnCuda : public TokenPass {
 public:
  /// Throws nothing where the model or the device does not suit: ready() is then false.
  TokenPassOnCuda(const Context& ctx, const TokenModel& model) {
    if (!suits(model) || !fits(ctx)) {
      return;
    }
    point_to(ctx, model);
    ready_ = true;
  }

  bool ready() const { return ready_; }

  void run(Context& ctx, const Tensor& embedding, const Tensor& position, const Tensor& ended,
           const Tensor& logits) override {
    check_shape(embedding, {1, args_.shape.width}, "the embedding of a token");
    check_shape(position, {1}, "the position of a token");
    check_shape(ended, {1}, "whether a sequence has ended");
    check_shape(logits, {1, args_.shape.vocabulary}, "the logits of a token");
    args_.embedding = data_of<bf16>(embedding);
    args_.position = position.data<std::int32_t>();
    args_.ended = ended.data<std::int32_t>();
    args_.logits = logits.f32();
    cudaLaunchAttribute all_at_once{};
    all_at_once.id = cudaLaunchAttributeCooperative;
    all_at_once.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks_));
    config.blockDim = dim3(kBlockThreads);
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes_);
    config.stream = stream_of(ctx);
    config.attrs = &all_at_once;
    config.numAttrs = 1;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel_, args_));
  }

 private:
  bool suits(const TokenModel& model);
  bool fits(const Context& ctx);
  void point_to(const Context& ctx, const TokenModel& model);

  PassArgs args_{.head = HeadShape(1, RotaryLayout::kHalf)};
  int blocks_ = 0;
  int shared_bytes_ = 0;
  PassKernel kernel_ = nullptr;
  Memory table_;  // LayerPointers
  Arena arena_;
  bool ready_ = false;
};

bool is_bf16(const Tensor& tensor, const Shape& shape) {
  return tensor && tensor.dtype() == DType::kBF16 && tensor.shape() == shape &&
         aligned16(tensor.raw());
}

bool is_f32(const Tensor& tensor, const Shape& shape) {
  return tensor && tensor.dtype() == DType::kF32 && tensor.shape() == shape &&
         aligned16(tensor.raw());
}

bool is_norm(const NormWeights& norm, std::int64_t width) {
  return is_f32(norm.gain, {width}) && is_f32(norm.bias, {width});
}

/// Sets the shape; layers must all be alike, as the kernel takes them.
bool TokenPassOnCuda::suits(const TokenModel& model) {
  constexpr std::int64_t kUnitWidth = 64;
  // What 32 bits are enough for: to find a block's rows, and a key.
  constexpr std::int64_t kMostRows = 1 << 21;
  constexpr std::int64_t kMostCached = std::int64_t{1} << 31;
  const std::int64_t width = model.classifier.cols();
  const std::int64_t heads = model.attention.heads;
  const std::int64_t dim = width / heads;
  if (model.layers.empty() || width > kMostWidth || model.classifier.rows() > kMostRows ||
      width % kUnitWidth != 0 || (dim != 32 && dim != 64 && dim != 128) || dim * heads != width ||
      !is_bf16(model.classifier, {model.classifier.rows(), width}) ||
      !is_norm(model.final_norm, width)) {
    return false;
  }
  const TokenRotation& first = model.layers.front().rotation;
  for (const TokenLayer& layer : model.layers) {
    const TokenRotation& r = layer.rotation;
    const bool same = r.layout == first.layout && r.increments.raw() == first.increments.raw() &&
                      static_cast<bool>(r.gate_weight) == static_cast<bool>(first.gate_weight) &&
                      r.exponent_start == first.exponent_start &&
                      r.gate_reads_embedding == first.gate_reads_embedding;
    const bool gate = !r.gate_weight || (is_f32(r.gate_weight, {heads, width}) && r.state &&
                                         r.state.shape() == Shape{1, heads, dim / 2} &&
                                         (!r.gate_bias || r.gate_bias.dtype() == DType::kF32));
    const Shape cache{1, layer.cache.keys.dim(1), width};
    if (!same || !gate || layer.cache.keys.size() >= kMostCached ||
        !is_norm(layer.attention_norm, width) || !is_norm(layer.mlp_norm, width) ||
        !is_bf16(layer.qkv_weight, {3 * width, width}) || !is_bf16(layer.qkv_bias, {3 * width}) ||
        !is_bf16(layer.attention_out_weight, {width, width}) ||
        !is_bf16(layer.attention_out_bias, {width}) ||
        !is_bf16(layer.mlp_in_weight, {4 * width, width}) ||
        !is_bf16(layer.mlp_in_bias, {4 * width}) ||
        !is_bf16(layer.mlp_out_weight, {width, 4 * width}) ||
        !is_bf16(layer.mlp_out_bias, {width}) || !is_bf16(layer.cache.keys, cache) ||
        !is_bf16(layer.cache.values, cache)) {
      return false;
    }
  }
  args_.shape = {.width = static_cast<int>(width),
                 .heads = static_cast<int>(heads),
                 .dim = static_cast<int>(dim),
                 .layers = static_cast<int>(model.layers.size()),
                 .vocabulary = static_cast<int>(model.classifier.rows())};
  return true;
}

/// Weights that a block asks for before it needs them. With two thirds of this on its way memory is
/// as fast as it gets; the more there is, the longer take words from block to block, which queue
/// behind it.
constexpr int kBytesAhead = 54 * 1024;

/// Chooses the kernel and the slots, if there is shared memory for them.
bool TokenPassOnCuda::fits(const Context& ctx) {
  constexpr int kMostSlots = 16;
  constexpr int kUsualSlots = 3;  // the two rows of a phase, and one of the next
  constexpr int kFewestSlots = 2;
  const int device = ctx.device().index;
  int cooperative = 0;
  int most_bytes = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  kernel_ = kernel_for<KnownShape<512, 8>, KnownShape<768, 12>, KnownShape<1024, 16>, AnyShape<4>,
                       AnyShape<8>>(args_.shape);
  cudaFuncAttributes compiled{};
  CUDA_CHECK(cudaFuncGetAttributes(&compiled, kernel_));
  // Every block is to have rows of the MLP's first matrix: see PassBlock.
  blocks_ = std::min(multiprocessors(ctx), units_of(args_.shape, kMlpIn));
  const auto bytes_with = [&](int slots) { return PassMemory(args_.shape, blocks_, slots).bytes; };
  const int row_bytes = args_.shape.width * static_cast<int>(sizeof(bf16));
  args_.slots = std::clamp(kBytesAhead / (kPassWarps * row_bytes), kUsualSlots, kMostSlots);
  while (args_.slots >= kFewestSlots && bytes_with(args_.slots) > most_bytes) {
    --args_.slots;
  }
  // A block has no more than one head, and a thread no more than one of the MLP's results.
  const int results = (units_of(args_.shape, kMlpOut) + blocks_ - 1) / blocks_ * kCopies;
  if (cooperative == 0 || args_.shape.heads > blocks_ || results > kPassThreads ||
      compiled.maxThreadsPerBlock < kBlockThreads || args_.slots < kFewestSlots) {
    return false;
  }
  shared_bytes_ = bytes_with(args_.slots);
  int resident = 0;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_));
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &resident, kernel_, kBlockThreads, static_cast<std::size_t>(shared_bytes_)));
  return resident >= 1;
}

NormPointers pointers_to(const NormWeights& norm) { return {norm.gain.f32(), norm.bias.f32()}; }

LayerPointers pointers_to(const TokenLayer& layer) {
  const TokenRotation& r = layer.rotation;
  return {.weights = {data_of<bf16>(layer.qkv_weight), data_of<bf16>(layer.attention_out_weight),
                      data_of<bf16>(layer.mlp_in_weight), data_of<bf16>(layer.mlp_out_weight)},
          .biases = {data_of<bf16>(layer.qkv_bias), data_of<bf16>(layer.attention_out_bias),
                     data_of<bf16>(layer.mlp_in_bias), data_of<bf16>(layer.mlp_out_bias)},
          .norms = {pointers_to(layer.attention_norm), pointers_to(layer.mlp_norm)},
          .keys = data_of<bf16>(layer.cache.keys),
          .values = data_of<bf16>(layer.cache.values),
          .gate_weight = data_of<float>(r.gate_weight),
          .gate_bias = data_of<float>(r.gate_bias),
          .phases = data_of<std::uint32_t>(r.state)};
}

void TokenPassOnCuda::point_to(const Context& ctx, const TokenModel& model) {
  const PassShape& shape = args_.shape;
  const TokenRotation& rotation = model.layers.front().rotation;
  std::vector<LayerPointers> layers;
  for (const TokenLayer& layer : model.layers) {
    layers.push_back(pointers_to(layer));
  }
  table_ = Memory(ctx.device(), layers.size() * sizeof(LayerPointers));
  copy_from_host(table_.data(), layers.data(), table_.bytes(), ctx.device());
  args_.layers = static_cast<const LayerPointers*>(table_.data());
  args_.head = HeadShape(shape.dim / 2, rotation.layout);
  args_.final_norm = pointers_to(model.final_norm);
  args_.classifier = data_of<bf16>(model.classifier);
  args_.slopes = data_of<float>(model.attention.slopes);
  args_.scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
  args_.increments = data_of<std::uint32_t>(rotation.increments);
  args_.has_gate = static_cast<bool>(rotation.gate_weight);
  args_.gate_reads_embedding = rotation.gate_reads_embedding;
  args_.exponent_start = static_cast<int>(rotation.exponent_start);
  args_.most_parts = std::max(1, blocks_ / shape.heads);
  arena_ = Arena::plan(ctx.device(), [&](Arena& arena) {
    const auto words = [&](std::int64_t count) {
      return data_of<TaggedWord>(arena.take({{count, 2}, DType::kU32}));
    };
    const auto copied = [&](int count) {
      return CopiedWords{words(std::int64_t{kCopies} * count), count};
    };
    args_.last_tag = data_of<std::uint32_t>(arena.take({{1}, DType::kU32}));
    args_.qkv = {words(units_of(shape, kQkv)), units_of(shape, kQkv)};
    args_.inputs[kQkv] = copied(units_of(shape, kMlpOut));
    args_.inputs[kAttentionOut] = copied(shape.width / 2);
    args_.inputs[kMlpIn] = copied(units_of(shape, kAttentionOut));
    args_.inputs[kMlpOut] = copied(units_of(shape, kMlpIn));
    args_.part_softmax = copied(args_.most_parts * shape.heads * 2);
    args_.part_out = copied(args_.most_parts * shape.width);
  });
  arena_.clear();
}

}  // namespace

std::unique_ptr<TokenPass> make_token_pass(Context& ctx, const TokenModel& model) {
  auto pass = std::make_unique<TokenPassOnCuda>(ctx, model);
  return pass->ready() ? std::move(pass) : nullptr;
}

}  // namespace carope::cuda
