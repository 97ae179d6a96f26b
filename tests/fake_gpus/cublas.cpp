// cuBLASLt, as far as this program calls it: one algorithm for every product.
#include <cublasLt.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "state.h"

using namespace carope::fake;

namespace {

struct Operation {
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::optional<cudaDataType_t> bias_type, aux_type;  // else the result's
  void *bias = nullptr, *aux = nullptr;
  std::int64_t aux_columns = 0;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t step;  // from one column to the next
};

float load(const void* from, cudaDataType_t type, std::int64_t i) {
  if (type == CUDA_R_32F) {
    return static_cast<const float*>(from)[i];
  }
  return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(from)[i]} << 16);
}
void store(void* to, cudaDataType_t type, std::int64_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(to)[i] = value;
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  static_cast<std::uint16_t*>(to)[i] = static_cast<std::uint16_t>(
      std::isnan(value) ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// All elements of op(matrix), column by column.
std::vector<float> unpack(const void* matrix, const Layout& layout, cublasOperation_t transpose) {
  const bool turned = transpose == CUBLAS_OP_T;
  const auto rows = static_cast<std::int64_t>(turned ? layout.columns : layout.rows);
  const auto columns = static_cast<std::int64_t>(turned ? layout.rows : layout.columns);
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = turned ? row * layout.step + column : column * layout.step + row;
      values[static_cast<std::size_t>(column * rows + row)] = load(matrix, layout.type, at);
    }
  }
  return values;
}

constexpr double kSlope = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kCube = 0.044715;
float gelu(float x) {
  return static_cast<float>(0.5 * x * (1.0 + std::tanh(kSlope * (x + kCube * x * x * x))));
}
float gelu_gradient(float x) {
  const double t = std::tanh(kSlope * (x + kCube * x * x * x));
  return static_cast<float>(0.5 * (1.0 + t) +
                            0.5 * x * (1.0 - t * t) * kSlope * (1.0 + 3.0 * kCube * x * x));
}

/// D = op(A) op(B) (+ C), and what the epilogue says.
void multiply(const Operation& operation, const void* a, const Layout& a_layout, const void* b,
              const Layout& b_layout, bool add, const void* c, void* d, const Layout& layout) {
  const std::vector<float> left = unpack(a, a_layout, operation.transpose_a);
  const std::vector<float> right = unpack(b, b_layout, operation.transpose_b);
  const auto rows = static_cast<std::int64_t>(layout.rows);
  const auto columns = static_cast<std::int64_t>(layout.columns);
  const auto depth = static_cast<std::int64_t>(right.size()) / columns;
  const cublasLtEpilogue_t epilogue = operation.epilogue;
  const cudaDataType_t bias_type = operation.bias_type.value_or(layout.type);
  const cudaDataType_t aux_type = operation.aux_type.value_or(layout.type);
  std::vector<float> sums(static_cast<std::size_t>(rows));
  for (std::int64_t column = 0; column < columns; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    float of_b = 0.0F;
    for (std::int64_t k = 0; k < depth; ++k) {
      const float factor = right[static_cast<std::size_t>(column * depth + k)];
      const float* const from = left.data() + k * rows;
      of_b += factor;
      for (std::int64_t row = 0; row < rows; ++row) {
        sums[static_cast<std::size_t>(row)] += factor * from[row];
      }
    }
    if (epilogue == CUBLASLT_EPILOGUE_BGRADB) {
      store(operation.bias, bias_type, column, of_b);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = column * layout.step + row;
      const std::int64_t in_aux = column * operation.aux_columns + row;
      float x = sums[static_cast<std::size_t>(row)] + (add ? load(c, layout.type, at) : 0.0F);
      if (epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        x += load(operation.bias, bias_type, row);
      }
      if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        store(operation.aux, aux_type, in_aux, x);
        x = gelu(x);
      } else if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
        x *= gelu_gradient(load(operation.aux, aux_type, in_aux));
      }
      store(d, layout.type, at, x);
    }
  }
}

template <class T>
void set(T& to, const void* value) {
  std::memcpy(&to, value, sizeof(to));
}
void set(std::optional<cudaDataType_t>& to, const void* value) { set(to.emplace(), value); }

std::size_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

/// Whether so many columns of a matrix lie in the memory of a device.
bool lies_on(int device, const void* matrix, cudaDataType_t type, std::uint64_t rows,
             std::uint64_t columns, std::int64_t step) {
  const auto wide = static_cast<std::uint64_t>(step);
  return rows > 0 && columns > 0 && wide >= rows &&
         state().device_of(matrix, ((columns - 1) * wide + rows) * size_of(type)) == device;
}
bool lies_on(int device, const void* matrix, const Layout& layout) {
  return lies_on(device, matrix, layout.type, layout.rows, layout.columns, layout.step);
}

/// Whether the factors fit each other and the result, and all is there that the epilogue names.
bool is_possible(int device, const Operation& operation, const Layout& a, const Layout& b,
                 const Layout& d) {
  const bool turned_a = operation.transpose_a == CUBLAS_OP_T;
  const bool turned_b = operation.transpose_b == CUBLAS_OP_T;
  if ((turned_a ? a.columns : a.rows) != d.rows || (turned_b ? b.rows : b.columns) != d.columns ||
      (turned_a ? a.rows : a.columns) != (turned_b ? b.columns : b.rows)) {
    return false;
  }
  const auto bias_of = [&](std::uint64_t count) {
    return lies_on(device, operation.bias, operation.bias_type.value_or(d.type), count, 1,
                   static_cast<std::int64_t>(count));
  };
  const auto aux = [&] {
    return lies_on(device, operation.aux, operation.aux_type.value_or(d.type), d.rows, d.columns,
                   operation.aux_columns);
  };
  switch (operation.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      return true;
    case CUBLASLT_EPILOGUE_BIAS:
      return bias_of(d.rows);
    case CUBLASLT_EPILOGUE_BGRADB:
      return bias_of(d.columns);
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      return bias_of(d.rows) && aux();
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_DGELU:
      return aux();
    default:
      return false;
  }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int{state().current()});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "refused by a fake GPU"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t,
                                        cudaDataType_t) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t) {
  auto& operation = *reinterpret_cast<Operation*>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      set(operation.transpose_a, value);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      set(operation.transpose_b, value);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      set(operation.epilogue, value);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      set(operation.bias_type, value);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      set(operation.bias, value);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      set(operation.aux_type, value);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      set(operation.aux, value);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      set(operation.aux_columns, value);
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<Operation*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t step) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, step});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = wanted < 2 ? wanted : 2;  // two, so that they are measured
  for (int i = 0; i < *found; ++i) {
    results[i] = {};
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const int device = state().current();
  const auto& of_a = *reinterpret_cast<Layout*>(a_layout);
  const auto& of_b = *reinterpret_cast<Layout*>(b_layout);
  const auto& of_d = *reinterpret_cast<Layout*>(d_layout);
  const auto& operation = *reinterpret_cast<Operation*>(desc);
  const float factor = *static_cast<const float*>(alpha);
  const float of_c = *static_cast<const float*>(beta);
  if (*reinterpret_cast<int*>(handle) != device || check_stream(stream) != cudaSuccess ||
      !lies_on(device, a, of_a) || !lies_on(device, b, of_b) || !lies_on(device, d, of_d) ||
      (of_c != 0.0F && !lies_on(device, c, of_d)) ||
      state().device_of(workspace, workspace_bytes) != device ||
      !is_possible(device, operation, of_a, of_b, of_d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (factor != 1.0F || (of_c != 0.0F && of_c != 1.0F)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  ++state().asked.launches;
  if (state().computes()) {
    give_in_order([=] {
      multiply(operation, a, of_a, b, of_b, of_c != 0.0F, c, d, of_d);
      return cudaSuccess;
    });
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
