#pragma once

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/folder.h"

// Folders of runs as training and evaluation leave them, made by hand: every number in them is
// known.
namespace carope::test {

using Json = nlohmann::ordered_json;

struct MadeRun {
  std::string encoding = "rope";
  int seed = 1;
  int layers = 2, width = 64, length = 64;
  std::string position = {};  // further lines of [position]
  std::string data = "data/stories";
  std::string sha256 = "0123456789abcdef";  // of the data
  int batch_tokens = 1000;
  double pace = 1.0;  // a faster machine's
};

/// config.toml, run.json and metrics.jsonl: four steps at 90, 100, 130 and 1000 tokens a second,
/// with losses 5, 4, 3 and 2, and validations at 2.5 and 2.25. The last line is cut off.
inline void write_run(const std::filesystem::path& folder, const MadeRun& run) {
  std::filesystem::create_directories(folder);
  write_bytes(folder / "config.toml",
              fmt::format("[model]\nlayers = {}\nheads = 2\nwidth = {}\nvocabulary = 50304\nlength "
                          "= {}\n\n[position]\nencoding = \"{}\"\n{}\n[data]\npath = \"{}\"\n\n"
                          "[train]\nseed = {}\nbatch_tokens = {}\n",
                          run.layers, run.width, run.length, run.encoding, run.position, run.data,
                          run.seed, run.batch_tokens));
  write_bytes(
      folder / "run.json",
      Json{{"version", "0.1.0"}, {"seed", run.seed}, {"data_manifest_sha256", run.sha256}}.dump());
  std::string metrics;
  const std::vector<double> speeds{90, 100, 130, 1000};
  for (int step = 1; step <= 4; ++step) {
    metrics += Json{{"step", step},
                    {"tokens", 1000 * step},
                    {"loss", 6.0 - step},
                    {"norm", 1.0},
                    {"learning_rate", 1e-3},
                    {"seconds", 0.1 * step},
                    {"tokens_per_second", run.pace * speeds[static_cast<std::size_t>(step - 1)]}}
                   .dump() +
               "\n";
    if (step % 2 == 0) {
      metrics +=
          Json{{"step", step}, {"tokens", 1000 * step}, {"validation_loss", 2.75 - 0.125 * step}}
              .dump() +
          "\n";
    }
  }
  write_bytes(folder / "metrics.jsonl", metrics + "{\"step\":5,\"tok");
}

inline void write_label(const std::filesystem::path& folder, const std::string& label, int order) {
  write_bytes(folder / "label.json", Json{{"label", label}, {"order", order}}.dump());
}

/// A perplexity of 0 is one that there is none of.
struct MadeLength {
  int length;
  double perplexity;
  std::string reason = "past the 64 positions of the encoding 'learnable'";
};

/// evaluation.json: intervals of 10 % around the perplexities, and a loss of 4 - position / 256 at
/// every fourth position.
inline void write_evaluation(const std::filesystem::path& folder,
                             const std::vector<MadeLength>& lengths) {
  Json list = Json::array();
  for (const auto& [length, perplexity, reason] : lengths) {
    if (perplexity == 0.0) {
      list.push_back(
          {{"length", length}, {"loss", nullptr}, {"perplexity", nullptr}, {"reason", reason}});
      continue;
    }
    Json positions = Json::array();
    for (int position = 0; position < length; position += 4) {
      positions.push_back(
          {{"position", position}, {"tokens", 8}, {"loss", 4.0 - position / 256.0}});
    }
    list.push_back({{"length", length},
                    {"loss", std::log(perplexity)},
                    {"perplexity", perplexity},
                    {"low", 0.9 * perplexity},
                    {"high", 1.1 * perplexity},
                    {"tokens", 4096},
                    {"positions", positions}});
  }
  write_bytes(folder / "evaluation.json", Json{{"version", "0.1.0"},
                                               {"checkpoint", "step-4"},
                                               {"step", 4},
                                               {"protocol", "windows"},
                                               {"tokens", 4096},
                                               {"lengths", list}}
                                              .dump());
}

/// What a hostile text may hold.
inline const std::vector<std::string>& made_tokens() {
  static const std::vector<std::string> kTokens{"The",  " <b>",      " &amp;", " \"x\"", "\n",
                                                " 'y'", "</script>", "\x01",   " café",  "\n\n"};
  return kTokens;
}

/// f of a token of the passage.
inline double made_frequency(int layer, int head, std::size_t token) {
  return 0.3 + 0.1 * layer + 0.05 * head + 0.02 * static_cast<double>((token * (head + 1)) % 7);
}

/// gate.json of 2 layers and 2 heads with 16 pairs: quantiles 0.1 apart around 0.3 + 0.1 layer +
/// 0.2 head, and bases of 10^(1 + 2 layer + head).
inline Json made_gate() {
  Json gates = Json::array();
  Json frequencies = Json::array();
  for (int layer = 0; layer < 2; ++layer) {
    Json heads = Json::array();
    for (int head = 0; head < 2; ++head) {
      const double median = 0.3 + 0.1 * layer + 0.2 * head;
      std::vector<int> histogram(40, 0);
      histogram[static_cast<std::size_t>(median * 40)] = 50;
      gates.push_back(
          {{"layer", layer},
           {"head", head},
           {"mean", median},
           {"deviation", 0.1},
           {"low", 0.01},
           {"high", 0.99},
           {"quantiles", {median - 0.2, median - 0.1, median, median + 0.1, median + 0.2}},
           {"histogram", histogram},
           {"base", std::pow(10.0, 1 + 2 * layer + head)}});
      Json tokens = Json::array();
      for (std::size_t i = 0; i < made_tokens().size(); ++i) {
        tokens.push_back(made_frequency(layer, head, i));
      }
      heads.push_back(tokens);
    }
    frequencies.push_back(heads);
  }
  return {{"layers", 2},    {"heads", 2},
          {"pairs", 16},    {"tokens", 8192},
          {"gates", gates}, {"passage", {{"tokens", made_tokens()}, {"frequencies", frequencies}}}};
}

inline constexpr const char* kHostileLabel = "<script>alert('|')</script> & \"co\"";

/// Five encodings: carope with two seeds and a gate, rope, learnable with a length it cannot have,
/// one that was not evaluated, and one with a hostile label.
inline void write_experiment(const std::filesystem::path& folder) {
  write_run(folder / "carope-1", {.encoding = "carope", .seed = 1, .position = "base = 65536.0\n"});
  write_evaluation(folder / "carope-1", {{64, 10.0}, {128, 16.0}});
  write_bytes(folder / "carope-1" / "gate.json", made_gate().dump());
  write_run(folder / "carope-2", {.encoding = "carope", .seed = 2, .position = "base = 65536.0\n"});
  write_evaluation(folder / "carope-2", {{64, 12.0}, {128, 20.0}});
  write_run(folder / "rope-1", {.encoding = "rope"});
  write_evaluation(folder / "rope-1", {{64, 10.5}, {128, 160.0}});
  write_run(folder / "learnable-1", {.encoding = "learnable"});
  write_evaluation(folder / "learnable-1", {{64, 14.0}, {128, 0.0}});
  write_run(folder / "none-1", {.encoding = "none"});
  write_run(folder / "hostile", {.encoding = "rope", .position = "base = 2e7\n"});
  write_evaluation(folder / "hostile", {{64, 11.0}, {128, 40.0}});
  int order = 0;
  for (const auto& [name, label] :
       std::vector<std::pair<std::string, std::string>>{{"carope-1", "carope"},
                                                        {"carope-2", "carope"},
                                                        {"rope-1", "rope"},
                                                        {"learnable-1", "learnable"},
                                                        {"none-1", "none"},
                                                        {"hostile", kHostileLabel}}) {
    write_label(folder / name, label, order++);
  }
  write_bytes(
      folder / "experiment.json",
      Json{{"title", "Tom & Jerry's <first> \"run\""},
           {"preset", "demo"},
           {"runs",
            {"hostile", "none-1", "learnable-1", "rope-1", "carope-1", "carope-2", "not-begun"}}}
          .dump());
}

}  // namespace carope::test
