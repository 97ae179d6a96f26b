#include <cmath>

#include "support/cases.h"

namespace carope::test {
namespace {

using reference::Values;

}  // namespace

OpCase adamw_case(const AdamwCase& c) {
  OpCase op{.op = "adamw",
            .variant = fmt::format("{}_updates{}{}{}", c.elements, c.updates,
                                   c.options.decay > 0.0F ? "_decay" : "",
                                   c.options.gradient_scale != 1.0F ? "_clipped" : "")};
  op.inputs = {{.name = "value", .shape = {c.elements}},
               {.name = "first_moment", .shape = {c.elements}, .scale = 0.0},
               {.name = "second_moment", .shape = {c.elements}, .scale = 0.0},
               {.name = "gradients", .shape = {c.updates, c.elements}}};
  op.outputs = {{.name = "value", .shape = {c.elements}, .starts_as = 0},
                {.name = "first_moment", .shape = {c.elements}, .starts_as = 1},
                {.name = "second_moment", .shape = {c.elements}, .starts_as = 2}};
  op.forward = [c](Context& ctx, const OpTensors& t) {
    Adamw options = c.options;
    for (options.step = 1; options.step <= c.updates; ++options.step) {
      const Tensor gradient =
          t.in[3].slice_rows(options.step - 1, options.step).reshape({c.elements});
      adamw(ctx, options, t.out[0], gradient, t.out[1], t.out[2]);
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
      for (std::size_t i = 0; i < value.size(); ++i) {
        const reference::Complex gradient =
            in[3][static_cast<std::size_t>(step - 1) * value.size() + i] *
            static_cast<double>(c.options.gradient_scale);
        first[i] = beta1 * first[i] + (1.0 - beta1) * gradient;
        second[i] = beta2 * second[i] + (1.0 - beta2) * gradient * gradient;
        const auto mean = first[i] / (1.0 - std::pow(beta1, steps));
        const auto deviation = std::sqrt(second[i] / (1.0 - std::pow(beta2, steps)));
        value[i] -= rate * (mean / (deviation + static_cast<double>(c.options.epsilon)) +
                            static_cast<double>(c.options.decay) * value[i]);
      }
    }
    return std::vector<Values>{value, first, second};
  };
  op.tokens = c.elements;
  return op;
}

OpCase sum_of_squares_case(const SumOfSquaresCase& c) {
  OpCase op{.op = "sum_of_squares", .variant = std::to_string(c.elements)};
  op.inputs = {{.name = "x", .shape = {c.elements}}};
  op.outputs = {{.name = "sum", .shape = {1}}};
  op.forward = [](Context& ctx, const OpTensors& t) {
    const auto sum = static_cast<float>(sum_of_squares(ctx, t.in[0]));
    copy_from_host(t.out[0].f32(), &sum, sizeof(sum), t.out[0].device());
  };
  op.reference = [](const std::vector<Values>& in) {
    reference::Complex sum = 0.0;
    for (const reference::Complex& x : in[0]) {
      sum += x * x;
    }
    return std::vector<Values>{Values{sum}};
  };
  op.tokens = c.elements;
  return op;
}

}  // namespace carope::test
