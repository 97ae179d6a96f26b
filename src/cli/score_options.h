#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cli/options.h"
#include "eval/perplexity.h"

// Options of the commands that score models.
namespace carope {

/// An option whose values have names.
template <class Value, class T>
void add_choice(CLI::App& command, const std::string& name, Value& value, std::vector<T> choices,
                const std::string& what) {
  std::vector<std::string> names;
  for (const T choice : choices) {
    names.emplace_back(to_string(choice));
  }
  command
      .add_option_function<std::string>(
          name,
          [&value, names, choices = std::move(choices)](const std::string& text) {
            const auto found = std::find(names.begin(), names.end(), text);
            value = choices[static_cast<std::size_t>(found - names.begin())];
          },
          what)
      ->check(CLI::IsMember(names));
}

/// `times` the training length are the default, as people say it.
inline void add_lengths_option(CLI::App& command, std::vector<std::int64_t>& lengths,
                               const std::string& times) {
  command
      .add_option("--lengths", lengths,
                  "lengths of windows to score, separated by commas; by default " + times +
                      " times the training length")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(as_quantity());
}

template <class Value>
void add_resample_option(CLI::App& command, Value& resample, const std::string& usual) {
  add_choice(command, "--resample", resample, std::vector{Resample::kWindows, Resample::kDocuments},
             "what intervals are made of: windows or documents; by default " + usual);
}

}  // namespace carope
