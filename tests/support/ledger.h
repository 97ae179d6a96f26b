#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/op_check.h"

namespace carope::test {

/// The largest errors seen of each operation, printed at the end: the tolerances are set by them.
class Ledger : public testing::Environment {
 public:
  /// Holds the deviations to their tolerances. `label` is what the line of the table is called.
  static void expect_outputs(const std::string& label, const std::vector<Deviation>& deviations) {
    expect(worst()[label].forward, deviations);
  }
  static void expect_gradients(const std::string& label, const std::vector<Deviation>& deviations) {
    expect(worst()[label].gradient, deviations);
  }

  void TearDown() override {
    fmt::print("largest relative errors\n{:<28}{:>12}{:>12}\n", "operation", "forward", "gradient");
    for (const auto& [label, errors] : worst()) {
      fmt::print("{:<28}{:>12.1e}{:>12}\n", label, errors.forward,
                 errors.gradient > 0.0 ? fmt::format("{:.1e}", errors.gradient) : "-");
    }
  }

 private:
  struct Worst {
    double forward = 0.0;
    double gradient = 0.0;
  };

  static void expect(double& worst, const std::vector<Deviation>& deviations) {
    for (const Deviation& deviation : deviations) {
      EXPECT_LE(deviation.error, deviation.tolerance) << deviation.name;
      worst = std::max(worst, deviation.error);
    }
  }

  static std::map<std::string, Worst>& worst() {
    static std::map<std::string, Worst> worst;
    return worst;
  }
};

}  // namespace carope::test
