#include "eval/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "ops/gate.h"
#include "train/run_data.h"

namespace carope {
namespace {

constexpr std::size_t kPassage = 192;  // tokens
constexpr std::size_t kWords = 10;     // at either end
constexpr std::int64_t kFewest = 16;   // occurrences that make a mean

/// Frequencies by layer and head, in the order of the text.
using Frequencies = std::vector<std::vector<std::vector<double>>>;

struct Math {
  static double abs(double x) { return std::abs(x); }
  static double max(double a, double b) { return std::max(a, b); }
  static double divide(double a, double b) { return a / b; }
  static double exp_of_negative(double x) { return std::exp(x); }
  static double log1p(double y) { return std::log1p(y); }
};

double frequency_of(double logit) {
  return gate::frequency<Math>(logit, gate::decayed<Math>(logit));
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

/// The tokens of a text, which one frequency a head belongs to each of.
class Text {
 public:
  explicit Text(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  /// Adds a batch, in which the text lies row by row.
  void append(const TokenBatch& batch) {
    const auto* ids = batch.tokens.data<std::int32_t>();
    ids_.insert(ids_.end(), ids, ids + batch.tokens.size());
  }

  /// Ends the text: finds out which tokens are frequent, and where.
  void finish() {
    std::map<std::int32_t, std::int64_t> counts;
    for (const std::int32_t id : ids_) {
      ++counts[id];
    }
    std::map<std::int32_t, std::size_t> numbers;
    for (const auto& [id, count] : counts) {
      if (count >= kFewest) {
        numbers[id] = frequent_.size();
        frequent_.push_back({id, count});
      }
    }
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (const auto found = numbers.find(ids_[i]); found != numbers.end()) {
        places_.push_back({i, found->second});
      }
    }
  }

  std::vector<std::string> passage() const {
    std::vector<std::string> words;
    for (std::size_t i = 0; i < std::min(ids_.size(), kPassage); ++i) {
      words.push_back(word(ids_[i]));
    }
    return words;
  }

  /// What one head's frequencies are by token.
  void describe_words(const std::vector<double>& values, HeadFrequencies& head) const {
    std::vector<double> sums(frequent_.size());
    double total = 0.0;
    for (const Place& place : places_) {
      sums[place.number] += values[place.at];
      total += values[place.at];
    }
    const double mean = total / std::max<double>(static_cast<double>(places_.size()), 1.0);
    double variance = 0.0;
    for (const Place& place : places_) {
      variance += (values[place.at] - mean) * (values[place.at] - mean);
    }
    double between = 0.0;
    std::vector<WordFrequency> words;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto count = static_cast<double>(frequent_[i].count);
      between += count * (sums[i] / count - mean) * (sums[i] / count - mean);
      words.push_back({word(frequent_[i].id), frequent_[i].count, sums[i] / count});
    }
    constexpr double kRounding = 1e-12;  // of a frequency, squared
    head.token_share =
        variance > kRounding * static_cast<double>(places_.size()) ? between / variance : 0.0;
    const auto slower = [](const auto& a, const auto& b) { return a.mean < b.mean; };
    std::stable_sort(words.begin(), words.end(), slower);
    const auto shown = static_cast<std::ptrdiff_t>(std::min(kWords, words.size() / 2));
    head.slowest.assign(words.begin(), words.begin() + shown);
    head.fastest.assign(words.rbegin(), words.rbegin() + shown);
  }

 private:
  struct Frequent {
    std::int32_t id;
    std::int64_t count;
  };
  struct Place {
    std::size_t at;      // in the text
    std::size_t number;  // of the frequent token
  };

  std::string word(std::int32_t id) const {
    return tokenizer_ != nullptr ? std::string(tokenizer_->text_of(id)) : fmt::format(" {}", id);
  }

  const Tokenizer* tokenizer_;
  std::vector<std::int32_t> ids_;
  std::vector<Frequent> frequent_;
  std::vector<Place> places_;
};

}  // namespace

double effective_base(double frequency, std::int64_t pairs) {
  return std::pow(frequency, -static_cast<double>(pairs));
}

std::optional<GateStatistics> measure_gate(Context& ctx, const Gpt& model, const Loader& loader,
                                           std::int64_t tokens, const Tokenizer* tokenizer) {
  if (gate_of(model.encoding()) == nullptr) {
    return std::nullopt;
  }
  const std::int64_t pairs = model.encoding().rotation->pairs;
  TokenBatch batch;
  const Arena arena = Arena::plan(Device{}, [&](Arena& plan) { batch = loader.place(plan); });
  const std::int64_t rows = batch.tokens.dim(0);
  // In a pass that evaluates, all layers share one set of logits.
  Activations a = model.plan({.batch = rows,
                              .length = batch.tokens.dim(1),
                              .documents = static_cast<bool>(batch_of(batch).seq.document_start)});
  const ModelShape shape = model.config().shape();
  GateStatistics gate{.layers = shape.layers, .heads = shape.key_heads, .pairs = pairs};
  Frequencies all(static_cast<std::size_t>(shape.layers),
                  std::vector<std::vector<double>>(static_cast<std::size_t>(shape.key_heads)));
  Text text(tokenizer);
  DeviceBatch device_batch;
  const std::int64_t available = std::max<std::int64_t>(loader.windows() / rows, 1);
  const std::int64_t wanted = (tokens + batch.tokens.size() - 1) / batch.tokens.size();
  for (std::int64_t i = 0; i < std::min(available, wanted); ++i) {
    loader.fill(i, batch);
    text.append(batch);
    const Batch view = device_batch.upload(ctx, batch_of(batch), model.config().vocabulary);
    model.forward(ctx, view.seq, view.tokens, a);
    for (std::size_t layer = 0; layer < all.size(); ++layer) {
      append(a.blocks[layer].attention.gate_logits, ctx.device(), all[layer]);
    }
    gate.tokens += batch.tokens.size();
  }
  text.finish();
  gate.passage = text.passage();
  const auto passage = static_cast<std::ptrdiff_t>(gate.passage.size());
  for (std::size_t layer = 0; layer < all.size(); ++layer) {
    gate.frequencies.emplace_back();
    for (std::size_t head = 0; head < all[layer].size(); ++head) {
      const auto begin = all[layer][head].begin();
      gate.frequencies[layer].emplace_back(begin, begin + passage);
      gate.gates.push_back(describe(all[layer][head], gate.pairs));
      gate.gates.back().layer = static_cast<std::int64_t>(layer);
      gate.gates.back().head = static_cast<std::int64_t>(head);
      text.describe_words(all[layer][head], gate.gates.back());
    }
  }
  return gate;
}

namespace {

using Json = nlohmann::ordered_json;

/// As many digits as mean something: a page of these is read by people, and kept.
double rounded(double frequency) {
  constexpr double kDigits = 1e6;
  return std::round(frequency * kDigits) / kDigits;
}

Json json_of(const std::vector<WordFrequency>& words) {
  Json json = Json::array();
  for (const WordFrequency& each : words) {
    json.push_back({{"word", each.word}, {"count", each.count}, {"mean", rounded(each.mean)}});
  }
  return json;
}

}  // namespace

std::string to_json(const GateStatistics& gate) {
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
                     {"base", head.base},
                     {"token_share", head.token_share},
                     {"slowest", json_of(head.slowest)},
                     {"fastest", json_of(head.fastest)}});
  }
  auto frequencies = gate.frequencies;
  for (auto& layer : frequencies) {
    for (auto& head : layer) {
      std::transform(head.begin(), head.end(), head.begin(), rounded);
    }
  }
  const Json json{{"layers", gate.layers},
                  {"heads", gate.heads},
                  {"pairs", gate.pairs},
                  {"tokens", gate.tokens},
                  {"gates", std::move(gates)},
                  {"passage", {{"tokens", gate.passage}, {"frequencies", frequencies}}}};
  // A token may be a part of a character.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace carope
