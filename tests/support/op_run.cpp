#include "support/op_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace carope::test {
namespace {

std::uint64_t hash(std::string_view text) {  // FNV-1a
  std::uint64_t state = 0xcbf29ce484222325;
  for (const char c : text) {
    state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return state;
}

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

double uniform(std::uint64_t seed, std::uint64_t i) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
  return static_cast<double>(mix(seed + (i + 1) * kGolden) >> 11) * 0x1p-52 - 1.0;
}

void round_to(DType type, std::vector<float>& values) {
  if (type == DType::kBF16) {
    for (float& value : values) {
      value = to_float(to_bf16(value));
    }
  }
}

/// A tensor of this type with values from [offset - scale, offset + scale].
std::vector<float> fill(const std::string& stream, const Shape& shape, DType type, double scale,
                        double offset) {
  const std::uint64_t seed = hash(stream);
  std::vector<float> values(static_cast<std::size_t>(shape.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(offset + scale * uniform(seed, i));
  }
  round_to(type, values);
  return values;
}

std::vector<float> nans(const Shape& shape) {
  return std::vector<float>(static_cast<std::size_t>(shape.size()),
                            std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

double uniform(std::string_view stream, std::uint64_t i) { return uniform(hash(stream), i); }

std::vector<float> input_values(const OpCase& op, std::size_t input, DType activation) {
  const Input& in = op.inputs[input];
  return fill(op.name() + "/" + in.name, in.shape, value_type(in.precision, activation), in.scale,
              in.offset);
}

std::vector<float> gradient_before(const OpCase& op, std::size_t input, DType activation) {
  const Input& in = op.inputs[input];
  return fill(op.name() + "/gradient before/" + in.name, in.shape,
              gradient_type(in.precision, activation), 1.0, 0.0);
}

std::vector<float> output_gradient(const OpCase& op, std::size_t output, DType activation) {
  const Output& out = op.outputs[output];
  return out.uniform_gradient
             ? std::vector<float>(static_cast<std::size_t>(out.shape.size()), *out.uniform_gradient)
             : fill(op.name() + "/gradient/" + out.name, out.shape,
                    gradient_type(out.precision, activation), 1.0, 0.0);
}

std::vector<float> read(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.size()));
  if (tensor.dtype() == DType::kBF16) {
    std::vector<Bf16> stored(values.size());
    copy_to_host(stored.data(), tensor.raw(), tensor.bytes(), tensor.device());
    std::transform(stored.begin(), stored.end(), values.begin(), to_float);
  } else {
    copy_to_host(values.data(), tensor.f32(), tensor.bytes(), tensor.device());
  }
  return values;
}

void write(const std::vector<float>& values, const Tensor& tensor) {
  if (tensor.dtype() == DType::kBF16) {
    std::vector<Bf16> stored(values.size());
    std::transform(values.begin(), values.end(), stored.begin(), to_bf16);
    copy_from_host(tensor.raw(), stored.data(), tensor.bytes(), tensor.device());
  } else {
    copy_from_host(tensor.f32(), values.data(), tensor.bytes(), tensor.device());
  }
}

void copy(const Tensor& from, const Tensor& to) {
  if (from.device().kind == DeviceKind::kCuda) {
    write(read(from), to);
  } else {
    std::memcpy(to.raw(), from.raw(), to.bytes());
  }
}

OpRun::OpRun(const OpCase& op, Context& ctx, DType activation)
    : op_(op), ctx_(ctx), activation_(activation) {
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Input& in = op.inputs[i];
    tensors_.in.push_back(
        place(in.shape, value_type(in.precision, activation), input_values(op, i, activation)));
  }
  for (const Constant& constant : op.constants) {
    tensors_.constants.push_back(place(constant));
  }
  for (const auto& [spec, precision] : op.saved) {
    const bool floats = spec.dtype == DType::kF32;
    tensors_.saved.push_back(
        allocate({spec.shape, floats ? stored(value_type(precision, activation)) : spec.dtype}));
  }
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const Output& out = op.outputs[i];
    tensors_.out.push_back(
        place(out.shape, value_type(out.precision, activation),
              out.starts_as ? input_values(op, *out.starts_as, activation) : nans(out.shape)));
    tensors_.d_out.push_back(out.differentiable
                                 ? place(out.shape, gradient_type(out.precision, activation),
                                         output_gradient(op, i, activation))
                                 : Tensor{});
  }
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Input& in = op.inputs[i];
    if (!in.differentiable) {
      tensors_.d_in.emplace_back();
      continue;
    }
    tensors_.d_in.push_back(
        place(in.shape, gradient_type(in.precision, activation),
              in.gradient_starts_as ? output_gradient(op, *in.gradient_starts_as, activation)
              : in.write == Write::kAccumulate ? gradient_before(op, i, activation)
                                               : nans(in.shape)));
  }
}

void OpRun::spoil_outputs() {
  for (const Tensor& out : tensors_.out) {
    write(nans(out.shape()), out);
  }
}

void OpRun::round_results() {
  const auto round = [](const Tensor& tensor, DType type) {
    if (tensor && tensor.dtype() == DType::kF32) {
      std::vector<float> values = read(tensor);
      round_to(type, values);
      write(values, tensor);
    }
  };
  for (std::size_t i = 0; i < op_.outputs.size(); ++i) {
    round(tensors_.out[i], value_type(op_.outputs[i].precision, activation_));
  }
  for (std::size_t i = 0; i < op_.saved.size(); ++i) {
    round(tensors_.saved[i], value_type(op_.saved[i].precision, activation_));
  }
  for (std::size_t i = 0; i < op_.inputs.size(); ++i) {
    round(tensors_.d_in[i], gradient_type(op_.inputs[i].precision, activation_));
  }
}

std::vector<std::vector<float>> OpRun::outputs() const {
  std::vector<std::vector<float>> values;
  for (const Tensor& out : tensors_.out) {
    values.push_back(read(out));
  }
  return values;
}

std::vector<std::vector<float>> OpRun::gradients() const {
  std::vector<std::vector<float>> values;
  for (const Tensor& gradient : tensors_.d_in) {
    values.push_back(gradient ? read(gradient) : std::vector<float>{});
  }
  return values;
}

DType OpRun::stored(DType type) const {
  return ctx_.device().kind == DeviceKind::kCuda ? type : DType::kF32;
}

Tensor OpRun::allocate(const TensorSpec& spec) {
  const Memory& memory = memory_.emplace_back(ctx_.device(), spec.bytes());
  const std::vector<unsigned char> ones(spec.bytes(), 0xff);  // a NaN, were it read as a float
  copy_from_host(memory.data(), ones.data(), spec.bytes(), ctx_.device());
  return {memory.data(), spec, ctx_.device()};
}

Tensor OpRun::place(const Shape& shape, DType type, const std::vector<float>& values) {
  const Tensor tensor = allocate({shape, stored(type)});
  write(values, tensor);
  return tensor;
}

Tensor OpRun::place(const Constant& constant) {
  return std::visit(
      [&]<class T>(const std::vector<T>& values) {
        const Tensor tensor = allocate({constant.shape, kDTypeOf<T>});
        copy_from_host(tensor.data<T>(), values.data(), tensor.bytes(), ctx_.device());
        return tensor;
      },
      constant.values);
}

}  // namespace carope::test
