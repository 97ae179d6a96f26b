#include "ops/attention/attention_cudnn.h"

#include <cudnn_frontend.h>

#include <cmath>
#include <map>

#include "core/cuda_check.h"
#include "core/progress.h"

namespace carope::cuda::cudnn {
namespace {

namespace fe = cudnn_frontend;

void check_cudnn(bool good, const char* what, const std::string& answer) {
  check<DeviceError>(good,
                     "cuDNN could not {}: {}; configure with CAROPE_CUDNN=OFF and rebuild to do "
                     "without it",
                     what, answer);
}

enum class Pass : std::uint8_t { kForward, kBackward };

/// Everything that a plan depends on.
struct Problem {
  Pass pass;
  bool deterministic;
  std::int64_t batch;
  std::int64_t length;
  std::int64_t heads;
  std::int64_t dim;

  auto operator<=>(const Problem&) const = default;
};

Problem problem_of(const Context& ctx, Pass pass, const Attention& attention, const Sequence& seq,
                   const Tensor& qkv) {
  // cuDNN's forward pass gives equal bits anyway, so one plan serves both settings.
  return {pass,
          pass == Pass::kBackward && ctx.deterministic(),
          seq.batch,
          seq.length,
          attention.heads,
          qkv.cols() / (3 * attention.heads)};
}

// Names of the tensors of a graph.
enum Name : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kDOut, kDQ, kDK, kDV };

using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// A planned attention, and where its tensors were in the last call.
class Plan {
 public:
  explicit Plan(const Problem& problem) : problem_(problem) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const GraphTensor q = in_qkv(kQ, input());
    const GraphTensor k = in_qkv(kK, input());
    const GraphTensor v = in_qkv(kV, input());
    if (problem.pass == Pass::kForward) {
      auto options = causal<fe::graph::SDPA_attributes>("attention");
      const auto [out, stats] = graph_.sdpa(q, k, v, options.set_generate_stats(true));
      in_out(kOut, out)->set_output(true);
      one_a_row(kStats, stats)->set_output(true);
    } else {
      auto options = causal<fe::graph::SDPA_backward_attributes>("attention_backward");
      const auto [dq, dk, dv] = graph_.sdpa_backward(
          q, k, v, in_out(kOut, input()), in_out(kDOut, input()), one_a_row(kStats, input()),
          options.set_deterministic_algorithm(problem.deterministic));
      in_qkv(kDQ, dq)->set_output(true);
      in_qkv(kDK, dk)->set_output(true);
      in_qkv(kDV, dv)->set_output(true);
    }
  }

  /// False where cuDNN has no kernel for the problem.
  bool build(cudnnHandle_t handle) {
    fe::error_t status = graph_.build(handle, {fe::HeurMode_t::A});
    if (status.is_good()) {
      status = graph_.get_workspace_size(workspace_bytes_);
    }
    switch (status.get_code()) {
      case fe::error_code_t::GRAPH_NOT_SUPPORTED:
      case fe::error_code_t::HEURISTIC_QUERY_FAILED:
      case fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED:
        return false;
      default:
        check_cudnn(status.is_good(), "plan attention", status.get_message());
        return true;
    }
  }

  std::int64_t workspace_bytes() const { return workspace_bytes_; }

  void place_out(Name name, const Tensor& tensor) { places_[name] = tensor.data<Bf16>(); }
  void place_stats(const Tensor& tensor) { places_[kStats] = tensor.f32(); }
  /// q, k and v of a token lie side by side.
  void place_qkv(Name q, Name k, Name v, const Tensor& packed) {
    Bf16* const first = packed.data<Bf16>();
    places_[q] = first;
    places_[k] = first + width();
    places_[v] = first + 2 * width();
  }

  void execute(Context& ctx, cudnnHandle_t handle) {
    const std::int64_t words = (std::max<std::int64_t>(workspace_bytes_, 1) + 3) / 4;
    const Tensor workspace = ctx.scratch({{words}, DType::kU32});
    fe::error_t status = graph_.execute(handle, places_, workspace.raw());
    check_cudnn(status.is_good(), "compute attention", status.get_message());
  }

 private:
  std::int64_t width() const { return problem_.heads * problem_.dim; }

  GraphTensor input() { return graph_.tensor(fe::graph::Tensor_attributes()); }

  template <class Attributes>
  Attributes causal(const char* name) const {
    Attributes attributes;
    attributes.set_name(name)
        .set_attn_scale(1.0F / std::sqrt(static_cast<float>(problem_.dim)))
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    return attributes;
  }

  /// Says that a tensor has the heads' matrices, inside rows of so many elements a token.
  GraphTensor in_rows(Name name, const GraphTensor& tensor, std::int64_t row) const {
    const auto& [pass, deterministic, batch, length, heads, dim] = problem_;
    tensor->set_uid(name)
        .set_data_type(fe::DataType_t::BFLOAT16)
        .set_dim({batch, heads, length, dim})
        .set_stride({length * row, dim, row, 1});
    return tensor;
  }
  GraphTensor in_qkv(Name name, const GraphTensor& tensor) const {
    return in_rows(name, tensor, 3 * width());
  }
  GraphTensor in_out(Name name, const GraphTensor& tensor) const {
    return in_rows(name, tensor, width());
  }
  /// Says that a tensor has one number a row of each head's scores.
  GraphTensor one_a_row(Name name, const GraphTensor& tensor) const {
    const auto& [pass, deterministic, batch, length, heads, dim] = problem_;
    tensor->set_uid(name)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({batch, heads, length, 1})
        .set_stride({heads * length, length, 1, 1});
    return tensor;
  }

  Problem problem_;
  fe::graph::Graph graph_;
  std::unordered_map<std::int64_t, void*> places_;
  std::int64_t workspace_bytes_ = 0;
};

struct DestroyHandle {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};

/// cuDNN's handle of a context and its plans, each made once. A cuDNN that does not start has no
/// plans.
class CudnnPlans {
 public:
  explicit CudnnPlans(const Context& ctx) : device_(ctx.device().index) {
    const CurrentDevice current(device_);
    cudnnHandle_t handle = nullptr;
    cudnnStatus_t status = cudnnCreate(&handle);
    handle_.reset(handle);
    if (status == CUDNN_STATUS_SUCCESS) {
      status = cudnnSetStream(handle, static_cast<cudaStream_t>(ctx.stream()));
    }
    if (status != CUDNN_STATUS_SUCCESS) {
      handle_.reset();
      if (ctx.speaks()) {
        tell(fmt::format("warning: attention does without cuDNN, which does not start: {}\n",
                         cudnnGetErrorString(status)));
      }
    }
  }

  cudnnHandle_t handle() const { return handle_.get(); }

  /// Null where cuDNN has no kernel, or only one that takes too much scratch.
  Plan* find(const Problem& problem) {
    if (!handle_) {
      return nullptr;
    }
    auto at = plans_.find(problem);
    if (at == plans_.end()) {
      at = plans_.emplace(problem, make(problem)).first;
    }
    return at->second.get();
  }

 private:
  std::unique_ptr<Plan> make(const Problem& problem) const {
    // Before Blackwell, a backward pass with equal bits keeps T x T numbers a head.
    constexpr std::int64_t kMaxWorkspace = std::int64_t{4} << 30;
    const CurrentDevice current(device_);
    auto plan = std::make_unique<Plan>(problem);
    if (!plan->build(handle()) || plan->workspace_bytes() > kMaxWorkspace) {
      plan.reset();
    }
    return plan;
  }

  int device_;
  std::unique_ptr<cudnnContext, DestroyHandle> handle_;
  std::map<Problem, std::unique_ptr<Plan>> plans_;
};

/// Whether a plan is worth asking for. Lengths of whole tiles only: they are what training has, a
/// plan takes longer to make than an odd length to compute, and backward passes of cuDNN are known
/// to give NaN where a tile reaches past the end and a row's scores are all far below zero.
bool suits(const Attention& attention, const Sequence& seq, const Tensor& qkv) {
  constexpr std::int64_t kTile = 128;
  constexpr std::int64_t kMaxDim = 128;
  const std::int64_t dim = qkv.cols() / (3 * attention.heads);
  return qkv.dtype() == DType::kBF16 && !seq.document_start && !attention.slopes && dim % 8 == 0 &&
         dim <= kMaxDim && seq.length % kTile == 0;
}

}  // namespace

bool serves(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv) {
  return suits(attention, seq, qkv) &&
         ctx.state<CudnnPlans>().find(problem_of(ctx, Pass::kForward, attention, seq, qkv));
}

bool serves_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                     const Tensor& qkv) {
  return suits(attention, seq, qkv) &&
         ctx.state<CudnnPlans>().find(problem_of(ctx, Pass::kBackward, attention, seq, qkv));
}

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp) {
  auto& plans = ctx.state<CudnnPlans>();
  Plan& plan = *plans.find(problem_of(ctx, Pass::kForward, attention, seq, qkv));
  plan.place_qkv(kQ, kK, kV, qkv);
  plan.place_out(kOut, out);
  plan.place_stats(logsumexp);
  plan.execute(ctx, plans.handle());
}

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args) {
  auto& plans = ctx.state<CudnnPlans>();
  Plan& plan = *plans.find(problem_of(ctx, Pass::kBackward, attention, seq, args.qkv));
  plan.place_qkv(kQ, kK, kV, args.qkv);
  plan.place_out(kOut, args.out);
  plan.place_out(kDOut, args.dout);
  plan.place_stats(args.logsumexp);
  plan.place_qkv(kDQ, kDK, kDV, args.dqkv);
  plan.execute(ctx, plans.handle());
}

}  // namespace carope::cuda::cudnn
