#include <fmt/ranges.h>

#include <cmath>

#include "core/arena.h"
#include "ops/sum.h"
#include "support/cases.h"

namespace carope::test {
namespace {

using reference::Values;

}  // namespace

OpCase adamw_case(const AdamwCase& c) {
  OpCase op{.op = "adamw",
            .variant = fmt::format("{}_updates{}{}{}", c.elements, c.updates,
                                   c.decay > 0.0F ? "_decay" : "",
                                   c.options.clip > 0.0 ? "_clipped" : "")};
  op.inputs = {{.name = "value", .shape = {c.elements}},
               {.name = "first_moment", .shape = {c.elements}, .scale = 0.0},
               {.name = "second_moment", .shape = {c.elements}, .scale = 0.0},
               {.name = "gradients", .shape = {c.updates, c.elements}}};
  op.outputs = {{.name = "value", .shape = {c.elements}, .starts_as = 0},
                {.name = "first_moment", .shape = {c.elements}, .starts_as = 1},
                {.name = "second_moment", .shape = {c.elements}, .starts_as = 2}};
  op.forward = [c](Context& ctx, const OpTensors& t) {
    Adamw options = c.options;
    Memory memory;
    const Tensor norm = upload(t.in[3].device(), std::vector<double>(1), memory);
    for (options.step = 1; options.step <= c.updates; ++options.step) {
      const Tensor gradient =
          t.in[3].slice_rows(options.step - 1, options.step).reshape({c.elements});
      const AdamwSlot slot{.value = t.out[0],
                           .gradient = gradient,
                           .first_moment = t.out[1],
                           .second_moment = t.out[2],
                           .decay = c.decay};
      gradient_norm(ctx, {&slot, 1}, norm);
      adamw(ctx, options, {&slot, 1}, norm);
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
                            static_cast<double>(c.decay) * value[i]);
      }
    }
    return std::vector<Values>{value, first, second};
  };
  op.tokens = c.elements;
  return op;
}

OpCase gradient_norm_case(const GradientNormCase& c) {
  OpCase op{.op = "gradient_norm", .variant = fmt::format("{}", fmt::join(c.elements, "_"))};
  for (const std::int64_t elements : c.elements) {
    op.inputs.push_back({.name = "gradient", .shape = {elements}});
    op.tokens += elements;
  }
  op.outputs = {{.name = "norm", .shape = {1}}};
  op.forward = [](Context& ctx, const OpTensors& t) {
    std::vector<AdamwSlot> slots;
    for (const Tensor& gradient : t.in) {
      slots.push_back({.value = {}, .gradient = gradient, .first_moment = {}, .second_moment = {}});
    }
    Memory memory;
    const Tensor norm = upload(t.out[0].device(), std::vector<double>(1), memory);
    gradient_norm(ctx, slots, norm);
    double length = 0.0;
    copy_to_host(&length, norm.raw(), sizeof(length), norm.device());
    const auto rounded = static_cast<float>(length);
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
  op.inputs = {{.name = "x", .shape = {c.elements}, .offset = 1.0}};
  op.outputs = {{.name = "total", .shape = {1}}};
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
