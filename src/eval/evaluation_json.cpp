#include "eval/evaluation_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/version.h"

namespace carope {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const LengthScore& score) {
  if (!score.reason.empty()) {
    return {{"length", score.length},
            {"loss", nullptr},
            {"perplexity", nullptr},
            {"reason", score.reason}};
  }
  Json positions = Json::array();
  for (const PositionLoss& point : score.positions) {
    positions.push_back(
        {{"position", point.position}, {"tokens", point.tokens}, {"loss", point.loss}});
  }
  // What a unit adds, for differences to other models on the same units.
  Json losses = Json::array();
  Json targets = Json::array();
  for (const LossSum& unit : score.units) {
    constexpr double kDigits = 1e4;  // of nats that add up over hundreds of targets
    losses.push_back(std::round(unit.loss * kDigits) / kDigits);
    targets.push_back(unit.tokens);
  }
  const bool interval = score.units.size() > 1;  // one unit says nothing of how others differ
  return {{"length", score.length},
          {"loss", score.loss},
          {"perplexity", std::exp(score.loss)},
          {"low", interval ? Json(std::exp(score.interval.low)) : Json()},
          {"high", interval ? Json(std::exp(score.interval.high)) : Json()},
          {"units", score.units.size()},
          {"tokens", score.tokens},
          {"unit_losses", losses},
          {"unit_tokens", targets},
          {"positions", positions}};
}

Json json_of(const Evaluation& evaluation) {
  Json lengths = Json::array();
  for (const LengthScore& score : evaluation.lengths) {
    lengths.push_back(json_of(score));
  }
  const EvalConfig& config = evaluation.config;
  Json json{{"version", version()},
            {"checkpoint", evaluation.checkpoint},
            {"step", evaluation.step},
            {"protocol", to_string(config.protocol)},
            {"stride", config.stride},
            {"last", config.last},
            {"resample", to_string(config.resample)},
            {"tokens", evaluation.tokens},
            {"lengths", lengths}};
  if (!evaluation.rope_scaling.empty()) {
    json["rope_scaling"] = evaluation.rope_scaling;
  }
  return json;
}

/// A path that is no UTF-8 is no reason to lose a score.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string to_json(const Evaluation& evaluation) { return text_of(json_of(evaluation)); }

std::string to_json(std::span<const Evaluation> evaluations) {
  Json all = Json::array();
  for (const Evaluation& evaluation : evaluations) {
    all.push_back(json_of(evaluation));
  }
  return text_of(all);
}

}  // namespace carope
