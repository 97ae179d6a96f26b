#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "data/synth/prose.h"

namespace carope::synth {

enum class FactKind : std::uint8_t {
  // people
  kHome,
  kTrade,
  kAge,
  kTeacher,
  kPet,
  kCoat,
  kFood,
  kTreasure,
  kFriend,
  kSibling,
  // towns
  kRiver,
  kGood,
  kInhabitants,
  kFounded,
  kMarket,
  kLandmark,
  kBuilder,
  kMayor,
  kEvent,
  kPrice,
  kDistance,
  // animals
  kAnimal,
  kHabitat,
  kDiet,
  kEggs,
  kHour,
  kSeenNear,
  // invented words
  kMeaning,
  kMadeIn,
  kUsers,
  // what changes in the course of a document
  kCount,
  kPlace,
};

/// Several ways to say one thing; the first `size` are there.
struct Forms {
  std::array<std::string_view, 4> form{};

  constexpr std::size_t size() const {
    std::size_t count = 0;
    while (count < form.size() && !form[count].empty()) {
      ++count;
    }
    return count;
  }
  constexpr std::string_view operator[](std::size_t i) const { return form[i]; }
};

/// How a fact is put into words: {0} is whom it is about, {1} what is to be known, {2} a further
/// word; {3} is he or she and {4} his or her where it is about a person. Clauses have no full stop
/// and no capital, so that they can stand in longer sentences.
struct FactForms {
  Forms clauses;
  Forms again;  // clauses after a sentence about the same
  Forms questions;
  std::string_view brief;  // a short answer
  std::string_view note;   // an entry of a list; empty where lists leave it out
};

const FactForms& forms_of(FactKind kind);

/// What kinds of thing documents are about.
enum class Topic : std::uint8_t { kPerson, kTown, kAnimal, kTerm };

/// Headings, first sentences, and sentences that only set the scene, of sections on a topic; {0} is
/// its name.
struct TopicForms {
  std::span<const std::string_view> headings, later_headings, openings, scenes;
};

const TopicForms& forms_of(Topic topic);

}  // namespace carope::synth
