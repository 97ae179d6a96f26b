#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/arena.h"
#include "ops/sum.h"
#include "support/cases.h"

namespace carope::test {
namespace {

using reference::Values;

/// A float tensor of a training step that is fp32 in every model.
Input full_input(const char* name, const Shape& shape, double scale = 1.0, double offset = 0.0) {
  return {.name = name,
          .shape = shape,
          .precision = Precision::kFull,
          .scale = scale,
          .offset = offset};
}

Output full_output(const char* name, const Shape& shape,
                   std::optional<std::size_t> starts_as = {}) {
  return {.name = name, .shape = shape, .precision = Precision::kFull, .starts_as = starts_as};
}

/// The slots that a case's elements are cut into, from tensors [elements].
std::vector<AdamwSlot> slots_of(const AdamwCase& c, const OpTensors& t, const Tensor& gradient) {
  std::vector<AdamwSlot> slots;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i <= c.cuts.size(); ++i) {
    const std::int64_t end = i < c.cuts.size() ? c.cuts[i] : c.elements;
    const auto part = [&](const Tensor& whole) {
      return whole.reshape({c.elements, 1}).slice_rows(begin, end);
    };
    slots.push_back({.value = part(t.out[0]),
                     .gradient = part(gradient),
                     .first_moment = part(t.out[1]),
                     .second_moment = part(t.out[2]),
                     .rounded = c.rounded ? part(t.out[3]) : Tensor{},
                     .decay = i % 2 == 0 ? c.decay : 0.0F});
    begin = end;
  }
  return slots;
}

bool decays(const AdamwCase& c, std::size_t element) {
  const auto slot =
      std::upper_bound(c.cuts.begin(), c.cuts.end(), static_cast<std::int64_t>(element)) -
      c.cuts.begin();
  return slot % 2 == 0;
}

}  // namespace

OpCase adamw_case(const AdamwCase& c) {
  OpCase op{
      .op = "adamw",
      .variant = fmt::format("{}_updates{}{}{}{}{}", c.elements, c.updates,
                             c.decay > 0.0F ? "_decay" : "", c.options.clip > 0.0 ? "_clipped" : "",
                             c.cuts.empty() ? "" : fmt::format("_slots{}", c.cuts.size() + 1),
                             c.rounded ? "_rounded" : ""),
      .bf16_only = c.rounded};
  const Shape shape{c.elements};
  op.inputs = {full_input("value", shape), full_input("first_moment", shape, 0.0),
               full_input("second_moment", shape, 0.0),
               full_input("gradients", {c.updates, c.elements})};
  op.outputs = {full_output("value", shape, 0), full_output("first_moment", shape, 1),
                full_output("second_moment", shape, 2)};
  if (c.rounded) {
    op.outputs.push_back({.name = "rounded", .shape = shape});
  }
  op.forward = [c](Context& ctx, const OpTensors& t) {
    Adamw options = c.options;
    Memory memory;
    const Tensor squares = upload(t.in[3].device(), std::vector<double>(1), memory);
    for (options.step = 1; options.step <= c.updates; ++options.step) {
      const auto slots = slots_of(c, t, t.in[3].slice_rows(options.step - 1, options.step));
      gradient_squares(ctx, slots, squares);
      adamw(ctx, options, slots, squares);
    }
  };
  op.reference = [c](const std::vector<Values>& in) {
    const double rate = c.options.learning_rate;
    const double beta1 = c.options.beta1;
    const double beta2 = c.options.beta2;
    Values value = in[0];
    Values first = in[1];
    Values second = in[2];
    for (std::int64_t step = 1; step <= c.updates; ++step) {
      const auto steps = static_cast<double>(step);
      const std::size_t first_gradient = static_cast<std::size_t>(step - 1) * value.size();
      double squares = 0.0;
      for (std::size_t i = 0; i < value.size(); ++i) {
        squares += std::norm(in[3][first_gradient + i]);
      }
      const double norm = std::sqrt(squares);
      const double scale =
          c.options.clip > 0.0 && norm > c.options.clip ? c.options.clip / norm : 1.0;
      for (std::size_t i = 0; i < value.size(); ++i) {
        const reference::Complex gradient = in[3][first_gradient + i] * scale;
        first[i] = beta1 * first[i] + (1.0 - beta1) * gradient;
        second[i] = beta2 * second[i] + (1.0 - beta2) * gradient * gradient;
        const auto mean = first[i] / (1.0 - std::pow(beta1, steps));
        const auto deviation = std::sqrt(second[i] / (1.0 - std::pow(beta2, steps)));
        value[i] -= rate * (mean / (deviation + static_cast<double>(c.options.epsilon)) +
                            (decays(c, i) ? static_cast<double>(c.decay) : 0.0) * value[i]);
      }
    }
    std::vector<Values> outputs{value, first, second};
    if (c.rounded) {
      outputs.push_back(value);
    }
    return outputs;
  };
  op.tokens = c.elements;
  return op;
}

OpCase gradient_norm_case(const GradientNormCase& c) {
  OpCase op{.op = "gradient_norm", .variant = fmt::format("{}", fmt::join(c.elements, "_"))};
  for (const std::int64_t elements : c.elements) {
    op.inputs.push_back(full_input("gradient", {elements}));
    op.tokens += elements;
  }
  op.outputs = {full_output("norm", {1})};
  op.forward = [](Context& ctx, const OpTensors& t) {
    std::vector<AdamwSlot> slots;
    for (const Tensor& gradient : t.in) {
      slots.push_back({.value = {}, .gradient = gradient, .first_moment = {}, .second_moment = {}});
    }
    Memory memory;
    const Tensor squares = upload(t.out[0].device(), std::vector<double>(1), memory);
    gradient_squares(ctx, slots, squares);
    double sum = 0.0;
    copy_to_host(&sum, squares.raw(), sizeof(sum), squares.device());
    const auto rounded = static_cast<float>(std::sqrt(sum));
    copy_from_host(t.out[0].f32(), &rounded, sizeof(rounded), t.out[0].device());
  };
  op.reference = [](const std::vector<Values>& in) {
    reference::Complex sum = 0.0;
    for (const Values& gradient : in) {
      for (const reference::Complex& x : gradient) {
        sum += x * x;
      }
    }
    return std::vector<Values>{Values{std::sqrt(sum)}};
  };
  return op;
}

OpCase sum_case(const SumCase& c) {
  OpCase op{.op = "sum", .variant = std::to_string(c.elements)};
  op.inputs = {full_input("x", {c.elements}, 1.0, 1.0)};
  op.outputs = {full_output("total", {1})};
  constexpr double kBefore = 0.5;
  op.forward = [c](Context& ctx, const OpTensors& t) {
    Memory memory;
    const Tensor total = upload(t.out[0].device(), std::vector<double>{kBefore}, memory);
    add_sum(ctx, t.in[0], c.scale, total);
    double sum = 0.0;
    copy_to_host(&sum, total.raw(), sizeof(sum), total.device());
    const auto rounded = static_cast<float>(sum);
    copy_from_host(t.out[0].f32(), &rounded, sizeof(rounded), t.out[0].device());
  };
  op.reference = [c](const std::vector<Values>& in) {
    reference::Complex sum = kBefore;
    for (const reference::Complex& x : in[0]) {
      sum += c.scale * x;
    }
    return std::vector<Values>{Values{sum}};
  };
  op.tokens = c.elements;
  return op;
}

}  // namespace carope::test
