#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/synth/grammar.h"
#include "data/synth/prose.h"
#include "data/synth/world.h"

namespace carope::synth {

/// One document as it is written: sections that tell something new alternate with sections that
/// come back to what was told, near or far.
class Chapter {
 public:
  Chapter(std::uint64_t seed, std::uint64_t index);

  std::string write();

 private:
  using Filter = std::function<bool(const Fact&)>;

  // What a section can be.
  void introduction();
  void new_topic();
  void topic(Entity& entity);
  void dealings();
  void journey();
  void conversation();
  void letter();
  void notes();
  void exercises(int count, std::string_view heading);

  // A question with its answer; false if nothing told so far allows one.
  bool question_about_fact();
  bool question_about_claim();
  bool problem();
  bool problem_of_age();
  bool problem_of_price();
  bool problem_of_years();
  bool problem_of_eggs();
  bool problem_of_roads();
  bool problem_of_carts();

  void heading(std::string_view form, const Words& words = {});
  std::string clause(Fact& fact, bool again = false);
  void tell(Fact& fact);
  void repeat(Fact& fact);
  void recall(Fact& fact);
  void recall_related(const Fact& fact);
  std::string claim(const Fact& fact, std::string_view value);
  /// The person's name, with trade and home where these have been told.
  std::string introduced(const Entity& person);
  const Entity& somebody() { return world_.entities[dice_.below(people_)]; }
  const Entity& somebody_but(const Entity& person);

  enum class Said : std::uint8_t { kLately, kAnyTime, kLongAgo };

  /// A fact told in an earlier section, preferring what was said lately or long ago. Null if none
  /// is found.
  Fact* told(Said when, const Filter& filter = nullptr);
  Fact* told(FactKind kind);
  /// Near and far in turn, so that dependence is found at every distance.
  Said any_distance() { return static_cast<Said>(dice_.below(3)); }
  /// Another value that a fact of this kind has in this document.
  std::optional<std::string_view> other_value(const Fact& fact);

  Dice dice_;
  World world_;
  Prose prose_;
  std::uint32_t people_;
  std::vector<std::size_t> told_;                          // facts
  std::vector<Deck<std::string_view>> scenes_, openings_;  // by topic
  std::string_view about_;  // whom the last sentence was about, as long as "she" or "it" is clear
  std::size_t section_start_ = 0;
  int sections_ = 0;
  int questions_ = 0;
  int notes_ = 0;
};

}  // namespace carope::synth
