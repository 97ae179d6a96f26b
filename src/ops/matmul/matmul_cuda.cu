#include "ops/matmul/matmul_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "ops/cuda/choices_cuda.h"
#include "ops/cuda/kernel.cuh"

namespace carope::cuda {
namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;

struct Candidate {
  cublasLtMatmulAlgo_t algorithm;
  float time;  // in ms
};
constexpr std::size_t kFinalists = 4;
constexpr float kWorthwhile = 0.02F;  // ms of a product from which finalists meet

#define CUBLAS_CHECK(statement) check_cublas((statement), #statement)

void check_cublas(cublasStatus_t status, const char* statement) {
  check<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "{}: {}", statement,
                     cublasLtGetStatusString(status));
}

cudaDataType_t type_of(const Tensor& tensor) {
  return tensor.dtype() == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kBiasGradient:
      return CUBLASLT_EPILOGUE_BGRADB;  // cuBLASLt's B is our left factor
  }
  throw Error("a matrix product has no epilogue");
}

/// The largest power of two, up to 256, that divides all addresses.
std::uint32_t alignment_of(const Matmul& product) {
  std::uintptr_t bits = 256;
  for (const Tensor* tensor : {&product.left.tensor, &product.right.tensor, &product.result,
                               &product.addend, &product.vector, &product.aux}) {
    bits |= reinterpret_cast<std::uintptr_t>(tensor->raw());
  }
  return std::uint32_t{1} << std::countr_zero(bits);
}

std::string to_hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) {
    text += fmt::format("{:016x}", word);
  }
  return text;
}

/// An algorithm's bytes mean something to one version of cuBLASLt only.
std::string key_of(const std::string& name) {
  return fmt::format("cublaslt{}.{}", cublasLtGetVersion(), name);
}

bool from_hex(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  constexpr std::size_t kDigits = 16;
  if (text.size() != std::size(algorithm.data) * kDigits ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return false;
  }
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i) {
    algorithm.data[i] = std::stoull(text.substr(i * kDigits, kDigits), nullptr, 16);
  }
  return true;
}

}  // namespace

/// Descriptors and the algorithm of one kind of product. cuBLASLt counts in columns: row-major
/// result = left right is its column-major resultᵀ = rightᵀ leftᵀ, so our right factor is its A.
struct MatmulPlans::Plan {
  explicit Plan(const Matmul& product) {
    const auto compute = CUBLAS_COMPUTE_32F;  // fp32 stays fp32: no TF32
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation, compute, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, product.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, product.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(product.epilogue));
    if (product.vector) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(product.vector));
    }
    if (product.aux) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.aux.cols());
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(product.aux));
    }
    point(product);
    a = layout_of(product.right.tensor);
    b = layout_of(product.left.tensor);
    d = layout_of(product.result);
  }
  ~Plan() {
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatmulDescDestroy(operation);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Names this product's vector and aux.
  void point(const Matmul& product) {
    if (product.vector) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.vector.raw());
    }
    if (product.aux) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux.raw());
    }
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
  }

  static cublasLtMatrixLayout_t layout_of(const Tensor& tensor) {
    cublasLtMatrixLayout_t layout = nullptr;
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type_of(tensor), tensor.cols(), tensor.rows(),
                                            tensor.cols()));
    return layout;
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool possible = false;
};

std::string name_of(const Matmul& product) {
  const auto rows_and_cols = [](const MatmulOperand& operand) {
    return fmt::format("{}x{}{}", operand.tensor.rows(), operand.tensor.cols(),
                       operand.transposed ? "t" : "");
  };
  return fmt::format("{}.{}.{}{}{}{}.{}.align{}", rows_and_cols(product.left),
                     rows_and_cols(product.right), to_string(product.left.tensor.dtype()),
                     to_string(product.result.dtype()),
                     product.accumulate ? ".add" : (product.addend ? ".add_other" : ""),
                     product.vector ? fmt::format(".{}", to_string(product.vector.dtype())) : "",
                     static_cast<int>(product.epilogue), alignment_of(product));
}

MatmulPlans::MatmulPlans(const Context& ctx) : workspace_(ctx.device(), kWorkspace) {
  CUBLAS_CHECK(cublasLtCreate(&handle_));
}

MatmulPlans::~MatmulPlans() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

MatmulPlans::Plan& MatmulPlans::plan_of(Context& ctx, const Matmul& product) {
  const std::string name = name_of(product);
  auto& plan = plans_[name];
  if (plan) {
    return *plan;
  }
  plan = std::make_unique<Plan>(product);
  const std::string* known = ctx.state<Choices>().find(key_of(name));
  cublasLtMatmulHeuristicResult_t checked{};
  if (known != nullptr && from_hex(*known, plan->algorithm) &&
      cublasLtMatmulAlgoCheck(handle_, plan->operation, plan->a, plan->b, plan->d, plan->d,
                              &plan->algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
      checked.workspaceSize <= workspace_.bytes()) {
    plan->possible = true;
  } else {
    choose(ctx, product, *plan);
  }
  return *plan;
}

void MatmulPlans::choose(Context& ctx, const Matmul& product, Plan& plan) {
  constexpr int kCandidates = 32;
  cublasLtMatmulPreference_t preference = nullptr;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    CUBLAS_CHECK(
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_.bytes());
  if (product.result.dtype() == DType::kBF16) {
    // Parts of a sum are added in fp32: added in bf16, they make a training visibly worse.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  }
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(attribute, alignment_of(product));
  }
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                     preference, kCandidates, candidates.data(), &found);
  CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
    return;
  }
  plan.possible = true;
  plan.algorithm = candidates[0].algo;
  if (found == 1 || ctx.deterministic()) {
    return;
  }
  require_no_capture(ctx, name_of(product));
  // A result that is added to must not be touched by trials.
  const Memory trial = product.accumulate ? Memory(ctx.device(), product.result.bytes()) : Memory();
  const Tensor result =
      product.accumulate
          ? Tensor(trial.data(), {product.result.shape(), product.result.dtype()}, ctx.device())
          : product.result;
  if (product.accumulate) {
    clear(ctx, result);
  }
  std::vector<Candidate> able;
  for (int i = 0; i < found; ++i) {
    plan.algorithm = candidates[i].algo;
    if (launch(ctx, product, plan, result) == CUBLAS_STATUS_SUCCESS) {
      const auto run = [&] { CUBLAS_CHECK(launch(ctx, product, plan, result)); };
      able.push_back({plan.algorithm, time_of(ctx, run)});
    }
  }
  plan.possible = !able.empty();
  if (!plan.possible) {
    return;
  }
  std::sort(able.begin(), able.end(),
            [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
  able.resize(std::min(able.size(), kFinalists));
  if (able.front().time >= kWorthwhile) {
    ctx.state<Choices>().tell_once();
    // What is fastest in a sprint may not be so when the GPU is hot and its power at the limit.
    for (Candidate& finalist : able) {
      plan.algorithm = finalist.algorithm;
      finalist.time = sustained_time_of(ctx, finalist.time,
                                        [&] { CUBLAS_CHECK(launch(ctx, product, plan, result)); });
    }
  }
  plan.algorithm = std::min_element(able.begin(), able.end(), [](const auto& a, const auto& b) {
                     return a.time < b.time;
                   })->algorithm;
  ctx.state<Choices>().keep(key_of(name_of(product)), to_hex(plan.algorithm));
}

cublasStatus_t MatmulPlans::launch(Context& ctx, const Matmul& product, Plan& plan,
                                   const Tensor& result) {
  plan.point(product);
  const float one = 1.0F;
  const float keep = product.accumulate || product.addend ? 1.0F : 0.0F;
  const Tensor& addend = product.addend ? product.addend : result;
  return cublasLtMatmul(handle_, plan.operation, &one, product.right.tensor.raw(), plan.a,
                        product.left.tensor.raw(), plan.b, &keep, addend.raw(), plan.d,
                        result.raw(), plan.d, &plan.algorithm, workspace_.data(),
                        workspace_.bytes(), stream_of(ctx));
}

bool MatmulPlans::serves(Context& ctx, const Matmul& product) {
  return plan_of(ctx, product).possible;
}

void MatmulPlans::run(Context& ctx, const Matmul& product) {
  Plan& plan = plan_of(ctx, product);
  check<DeviceError>(plan.possible, "cuBLASLt has no algorithm for the product {}",
                     name_of(product));
  CUBLAS_CHECK(launch(ctx, product, plan, product.result));
}

}  // namespace carope::cuda
