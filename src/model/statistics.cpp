#include "model/statistics.h"

#include <algorithm>
#include <cmath>

namespace carope {

std::vector<ParameterStatistics> parameter_statistics(const Gpt& model) {
  std::vector<ParameterStatistics> all;
  for (const Parameter& parameter : model.parameters()) {
    std::vector<float> values(static_cast<std::size_t>(parameter.value.size()));
    copy_to_host(values.data(), parameter.value.f32(), parameter.value.bytes(),
                 parameter.value.device());
    ParameterStatistics one{parameter.spec.name, parameter.spec.shape};
    const auto count = static_cast<double>(values.size());
    for (const double value : values) {
      one.mean += value / count;
      one.largest = std::max(one.largest, std::abs(value));
    }
    double squares = 0.0;
    for (const double value : values) {
      squares += (value - one.mean) * (value - one.mean);
    }
    one.deviation = std::sqrt(squares / count);
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace carope
