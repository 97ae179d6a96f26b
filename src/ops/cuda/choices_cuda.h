#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>

#include "core/context.h"

namespace carope::cuda {

/// What was found fastest on this machine, by name. Choices are kept in the user's cache folder, so
/// that a machine measures once and later runs choose alike. A deterministic context measures
/// nothing and keeps nothing: a choice by time is not the same on every machine.
class Choices {
 public:
  explicit Choices(const Context& ctx);

  /// What was chosen, or nothing.
  const std::string* find(const std::string& name) const;
  void keep(const std::string& name, const std::string& choice);

  /// Tells the user, the first time, that things are being measured; only if the context speaks.
  void tell_once();

  /// An algorithm for a result, and whether it serves this device and these tensors.
  struct Algorithm {
    std::string name;
    std::function<bool()> serves;
    std::function<void()> run;
  };
  /// Runs the fastest of several algorithms for the same result. Where it is not known which that
  /// is, all that serve run, several times; a deterministic context takes the first that serves.
  void run_fastest(Context& ctx, const std::string& name,
                   std::initializer_list<Algorithm> algorithms);

 private:
  std::filesystem::path file_;  // empty: nothing is kept
  std::map<std::string, std::string> chosen_;
  bool told_;
};

/// The median time of a few runs, in ms.
float time_of(Context& ctx, const std::function<void()>& run);
/// The mean time of as many runs as heat a GPU; `once` is about how long one takes.
float sustained_time_of(Context& ctx, float once, const std::function<void()>& run);

/// Throws while a graph is captured, since nothing can be timed then; `name` says what was to be.
void require_no_capture(const Context& ctx, const std::string& name);

}  // namespace carope::cuda
