#include "eval/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "train/run_data.h"

namespace carope {
namespace {

constexpr std::size_t kPassage = 192;  // tokens

/// Frequencies by layer and head, in the order of the text.
using Frequencies = std::vector<std::vector<std::vector<double>>>;

double frequency_of(double logit) {
  const double softplus = std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit)));
  return 1.0 / (softplus + 1.0);
}

/// Adds those of the last forward pass. `logits` [B, T, H] of one layer.
void append(const Tensor& logits, Device device, std::vector<std::vector<double>>& heads) {
  std::vector<float> values(static_cast<std::size_t>(logits.size()));
  copy_to_host(values.data(), logits.f32(), logits.bytes(), device);
  for (std::size_t i = 0; i < values.size(); ++i) {
    heads[i % heads.size()].push_back(frequency_of(values[i]));
  }
}

HeadFrequencies describe(std::vector<double> values, std::int64_t pairs) {
  HeadFrequencies head;
  double sum = 0.0;
  double logarithms = 0.0;
  for (const double f : values) {
    sum += f;
    logarithms += std::log(f);
    ++head.counts[static_cast<std::size_t>(std::clamp<int>(
        static_cast<int>(f * HeadFrequencies::kBins), 0, HeadFrequencies::kBins - 1))];
  }
  const auto count = static_cast<double>(values.size());
  head.mean = sum / count;
  double squares = 0.0;
  for (const double f : values) {
    squares += (f - head.mean) * (f - head.mean);
  }
  head.deviation = std::sqrt(squares / count);
  std::sort(values.begin(), values.end());
  head.lowest = values.front();
  head.highest = values.back();
  constexpr std::array<double, 5> kParts{0.05, 0.25, 0.5, 0.75, 0.95};
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    head.quantiles[i] = values[static_cast<std::size_t>(std::lround(kParts[i] * (count - 1.0)))];
  }
  head.base = effective_base(std::exp(logarithms / count), pairs);
  return head;
}

/// Adds tokens of a batch, in which the text lies row by row, until the passage is long enough.
void append(const TokenBatch& batch, const Tokenizer* tokenizer,
            std::vector<std::string>& passage) {
  const auto* ids = batch.tokens.data<std::int32_t>();
  for (std::int64_t i = 0; i < batch.tokens.size() && passage.size() < kPassage; ++i) {
    passage.push_back(tokenizer != nullptr ? std::string(tokenizer->text_of(ids[i]))
                                           : fmt::format(" {}", ids[i]));
  }
}

}  // namespace

double effective_base(double frequency, std::int64_t pairs) {
  return std::pow(frequency, -static_cast<double>(pairs));
}

std::optional<GateStatistics> measure_gate(Context& ctx, const Gpt& model, const Loader& loader,
                                           std::int64_t tokens, const Tokenizer* tokenizer) {
  if (!model.encoding().has_gate()) {
    return std::nullopt;
  }
  TokenBatch batch;
  const Arena arena = Arena::plan(Device{}, [&](Arena& plan) { batch = loader.place(plan); });
  const std::int64_t rows = batch.tokens.dim(0);
  Activations a = model.plan(rows, batch.tokens.dim(1), Purpose::kTraining);
  const ModelShape shape = model.config().shape();
  GateStatistics gate{.layers = shape.layers, .heads = shape.heads, .pairs = shape.pairs()};
  Frequencies all(static_cast<std::size_t>(shape.layers),
                  std::vector<std::vector<double>>(static_cast<std::size_t>(shape.heads)));
  DeviceBatch device_batch;
  const std::int64_t available = std::max<std::int64_t>(loader.windows() / rows, 1);
  const std::int64_t wanted = (tokens + batch.tokens.size() - 1) / batch.tokens.size();
  for (std::int64_t i = 0; i < std::min(available, wanted); ++i) {
    loader.fill(i, batch);
    append(batch, tokenizer, gate.passage);
    const Batch view = device_batch.upload(ctx, batch_of(batch), model.config().vocabulary);
    model.forward(ctx, view.seq, view.tokens, a);
    for (std::size_t layer = 0; layer < all.size(); ++layer) {
      append(model.gate_logits(layer, a), ctx.device(), all[layer]);
    }
    gate.tokens += batch.tokens.size();
  }
  const auto passage = static_cast<std::ptrdiff_t>(gate.passage.size());
  for (std::size_t layer = 0; layer < all.size(); ++layer) {
    gate.frequencies.emplace_back();
    for (std::size_t head = 0; head < all[layer].size(); ++head) {
      const auto begin = all[layer][head].begin();
      gate.frequencies[layer].emplace_back(begin, begin + passage);
      gate.gates.push_back(describe(std::move(all[layer][head]), gate.pairs));
      gate.gates.back().layer = static_cast<std::int64_t>(layer);
      gate.gates.back().head = static_cast<std::int64_t>(head);
    }
  }
  return gate;
}

std::string to_json(const GateStatistics& gate) {
  using Json = nlohmann::ordered_json;
  Json gates = Json::array();
  for (const HeadFrequencies& head : gate.gates) {
    gates.push_back({{"layer", head.layer},
                     {"head", head.head},
                     {"mean", head.mean},
                     {"deviation", head.deviation},
                     {"low", head.lowest},
                     {"high", head.highest},
                     {"quantiles", head.quantiles},
                     {"histogram", head.counts},
                     {"base", head.base}});
  }
  const Json json{{"layers", gate.layers},
                  {"heads", gate.heads},
                  {"pairs", gate.pairs},
                  {"tokens", gate.tokens},
                  {"gates", std::move(gates)},
                  {"passage", {{"tokens", gate.passage}, {"frequencies", gate.frequencies}}}};
  // A token may be a part of a character.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace carope
