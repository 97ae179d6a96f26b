#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "data/synth/grammar.h"

namespace carope::synth {

/// Something that is so in a document, and where in the text it was last said.
struct Fact {
  FactKind kind;
  Words words;
  std::size_t said = 0;
  bool told = false;

  std::string_view subject() const { return words[0]; }
  std::string_view value() const { return words[1]; }
  bool names(std::string_view word) const {
    return words[0] == word || words[1] == word || words[2] == word;
  }
};

/// A person, town, animal or invented word, with what can be told of it in the order of telling.
struct Entity {
  Topic topic;
  std::string_view name;
  std::string_view he, his;
  std::vector<std::size_t> facts = {};
  std::size_t told = 0;
};

/// People who have some number of one thing each, and pass it on.
struct Ledger {
  std::string_view item;
  std::vector<std::size_t> counts;  // facts
};

/// A person on the move.
struct Traveller {
  std::size_t person;
  std::size_t place;  // fact
};

/// Everything that one document can tell, drawn before its first word is written.
struct World {
  explicit World(Dice& dice);

  /// The fact of this kind about this subject, which must be there.
  Fact& find(FactKind kind, std::string_view subject);
  /// The road between two towns, from either end.
  Fact& road(std::string_view from, std::string_view to);

  std::vector<Fact> facts;
  std::vector<Entity> entities;  // people first, then towns, animals and invented words
  std::size_t people = 0;
  std::size_t towns = 0;
  std::vector<Ledger> ledgers;
  std::vector<Traveller> travellers;

 private:
  class Maker;
  std::deque<std::string> phrases_;
};

}  // namespace carope::synth
