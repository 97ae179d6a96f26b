#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <string>

#include "core/context.h"
#include "core/memory.h"

// Matrix products by cuBLASLt.
namespace carope::cuda {

/// What a product does to its result before it is stored.
enum class Epilogue : std::uint8_t {
  kNone,
  kBias,          // + bias
  kBiasGelu,      // aux = product + bias, result = gelu(aux)
  kGelu,          // aux = product, result = gelu(aux)
  kGeluGradient,  // result = product * gelu'(aux)
  kBiasGradient,  // vector = the sum of each of the left factor's rows
};

struct MatmulOperand {
  Tensor tensor;  // row-major, two axes count: [rows, cols]
  bool transposed = false;
};

/// result [m, n] = (or +=) left [m, k] right [k, n].
struct Matmul {
  MatmulOperand left;
  MatmulOperand right;
  Tensor result;
  bool accumulate = false;
  Tensor addend{};  // [m, n] added to the product, where that is not the result itself
  Epilogue epilogue = Epilogue::kNone;
  Tensor vector{};  // [n] the bias, or [m] what a bias gradient is written to
  Tensor aux{};     // [m, n]
};

/// Runs products, each with the algorithm that was fastest when a product of its kind was first
/// met on this machine; see Choices. A deterministic context takes cuBLASLt's own choice instead.
class MatmulPlans {
 public:
  explicit MatmulPlans(const Context& ctx);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  /// Whether cuBLASLt has an algorithm for a product.
  bool serves(Context& ctx, const Matmul& product);
  /// Throws if there is none.
  void run(Context& ctx, const Matmul& product);

 private:
  struct Plan;

  Plan& plan_of(Context& ctx, const Matmul& product);
  void choose(Context& ctx, const Matmul& product, Plan& plan);
  cublasStatus_t launch(Context& ctx, const Matmul& product, Plan& plan, const Tensor& result);

  cublasLtHandle_t handle_ = nullptr;
  Memory workspace_;
  std::map<std::string, std::unique_ptr<Plan>> plans_;
};

/// A product's kind: what its algorithm may depend on.
std::string name_of(const Matmul& product);

}  // namespace carope::cuda
