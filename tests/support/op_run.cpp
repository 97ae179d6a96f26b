#include "support/op_run.h"

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

std::vector<float> fill(const std::string& stream, std::int64_t count, double scale,
                        double offset) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(offset + scale * uniform(stream, i));
  }
  return values;
}

std::vector<float> nans(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count),
                            std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

double uniform(std::string_view stream, std::uint64_t i) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
  return static_cast<double>(mix(hash(stream) + (i + 1) * kGolden) >> 11) * 0x1p-52 - 1.0;
}

std::vector<float> input_values(const OpCase& op, std::size_t input) {
  const Input& in = op.inputs[input];
  return fill(op.name() + "/" + in.name, in.shape.size(), in.scale, in.offset);
}

std::vector<float> gradient_before(const OpCase& op, std::size_t input) {
  const Input& in = op.inputs[input];
  return fill(op.name() + "/gradient before/" + in.name, in.shape.size(), 1.0, 0.0);
}

std::vector<float> output_gradient(const OpCase& op, std::size_t output) {
  const Output& out = op.outputs[output];
  return out.uniform_gradient
             ? std::vector<float>(static_cast<std::size_t>(out.shape.size()), *out.uniform_gradient)
             : fill(op.name() + "/gradient/" + out.name, out.shape.size(), 1.0, 0.0);
}

std::vector<float> read(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.size()));
  copy_to_host(values.data(), tensor.f32(), tensor.bytes(), tensor.device());
  return values;
}

void copy(const Tensor& from, const Tensor& to) {
  if (from.device().kind == DeviceKind::kCuda) {
    copy_from_host(to.f32(), read(from).data(), to.bytes(), to.device());
  } else {
    std::memcpy(to.f32(), from.f32(), to.bytes());
  }
}

OpRun::OpRun(const OpCase& op, Context& ctx) : op_(op), ctx_(ctx) {
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    tensors_.in.push_back(place(op.inputs[i].shape, input_values(op, i)));
  }
  for (const Constant& constant : op.constants) {
    tensors_.constants.push_back(place(constant));
  }
  for (const TensorSpec& spec : op.saved) {
    tensors_.saved.push_back(allocate(spec));
  }
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const Output& out = op.outputs[i];
    tensors_.out.push_back(place(
        out.shape, out.starts_as ? input_values(op, *out.starts_as) : nans(out.shape.size())));
    tensors_.d_out.push_back(out.differentiable ? place(out.shape, output_gradient(op, i))
                                                : Tensor{});
  }
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Input& in = op.inputs[i];
    if (!in.differentiable) {
      tensors_.d_in.emplace_back();
    } else if (in.gradient_starts_as) {
      tensors_.d_in.push_back(place(in.shape, output_gradient(op, *in.gradient_starts_as)));
    } else {
      tensors_.d_in.push_back(place(in.shape, in.write == Write::kAccumulate
                                                  ? gradient_before(op, i)
                                                  : nans(in.shape.size())));
    }
  }
}

void OpRun::spoil_outputs() {
  for (const Tensor& out : tensors_.out) {
    copy_from_host(out.f32(), nans(out.size()).data(), out.bytes(), out.device());
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

Tensor OpRun::allocate(const TensorSpec& spec) {
  const Memory& memory = memory_.emplace_back(ctx_.device(), spec.bytes());
  const std::vector<unsigned char> ones(spec.bytes(), 0xff);  // a NaN, were it read as a float
  copy_from_host(memory.data(), ones.data(), spec.bytes(), ctx_.device());
  return {memory.data(), spec, ctx_.device()};
}

Tensor OpRun::place(const Shape& shape, const std::vector<float>& values) {
  return place(Constant{shape, values});
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
