#include "data/synth/chapter.h"

#include <algorithm>

namespace carope::synth {
namespace {

constexpr std::string_view kTitles[] = {
    "Chapter {0}: {1} and the [Towns|People] of the [Valley|Plain|Hills]",
    "Chapter {0}: From {1} to {2}",
    "Chapter {0}: [Life|Work|Summer|Winter] in {1} and {2}",
    "Chapter {0}: [The Country around {1}|Travels near {1}|Stories from {1}]",
    "Chapter {0}: {3} and {4}",
    "Chapter {0}: What {3} [Told|Taught|Showed] {4}"};

constexpr std::string_view kTellings[] = {
    "{0}.", "{0}.", "{0}.",
    "[It is well known|Everybody knows|One should know|It is said|We learn|The books tell us] that "
    "{0}."};
constexpr std::string_view kTellingsOfTheSame[] = {
    "{0}.", "{0}.", "{0}.", "{0}.",
    "[In fact|Indeed|Moreover|Besides|Of course|What is more|Also], {0}."};

constexpr std::string_view kRecalls[] = {
    "[Remember|Do not forget|Let us remember] that {0}.",
    "As [we know|we have read|was said before|was told above], {0}.",
    "{0}, as we [know|have read|have seen].", "We have [read|learned|heard] that {0}.",
    "[Earlier|Before] it was said that {0}."};

/// Whether "she" or "it" could be taken for another after such a fact.
bool names_another(FactKind kind) {
  constexpr FactKind kSuch[] = {FactKind::kTeacher,  FactKind::kFriend, FactKind::kSibling,
                                FactKind::kDistance, FactKind::kPrice,  FactKind::kMarket,
                                FactKind::kBuilder,  FactKind::kEvent,  FactKind::kMadeIn,
                                FactKind::kSeenNear};
  return std::find(std::begin(kSuch), std::end(kSuch), kind) != std::end(kSuch);
}

}  // namespace

Chapter::Chapter(std::uint64_t seed, std::uint64_t index)
    : dice_(seed, index),
      world_(dice_),
      prose_(dice_, 24 * 1024),
      people_(static_cast<std::uint32_t>(world_.people)) {
  told_.reserve(world_.facts.size());
  for (const Topic topic : {Topic::kPerson, Topic::kTown, Topic::kAnimal, Topic::kTerm}) {
    scenes_.emplace_back(forms_of(topic).scenes);
    openings_.emplace_back(forms_of(topic).openings);
  }
}

std::string Chapter::write() {
  const int words = dice_.chance(10) ? dice_.range(1000, 1500) : dice_.range(1500, 3600);
  const int questions = words / 150;
  constexpr int kWordsAQuestion = 15;
  constexpr int kBytesTenWords = 53;
  const auto body =
      static_cast<std::size_t>((words - questions * kWordsAQuestion) * kBytesTenWords / 10);
  introduction();
  Entity& promised = world_.entities.back();
  bool told_tale = true;  // no two tales follow each other, and none comes first
  for (bool tells = true; prose_.size() < body; tells = !tells || dice_.chance(25)) {
    const std::uint32_t lot = dice_.below(100);
    if (promised.told == 0 && prose_.size() > body / 2) {
      topic(promised);
    } else if (tells || sections_ < 3) {
      const bool tale = lot >= 60 && !told_tale;
      tale ? (lot < 80 ? dealings() : journey()) : new_topic();
      told_tale = tale;
    } else {
      lot < 40   ? exercises(dice_.range(3, 6), "[Exercises|Questions|Do You Remember?]")
      : lot < 70 ? conversation()
      : lot < 84 ? letter()
                 : notes();
    }
  }
  exercises(questions, "Questions on the Whole Chapter");
  return prose_.take();
}

void Chapter::introduction() {
  const std::size_t town = world_.people;
  const auto& all = world_.entities;
  const Words words{digits(dice_.range(1, 40)),
                    all[town].name,
                    all[town + 1].name,
                    all[0].name,
                    all[1].name,
                    all[2].name,
                    all.back().name,
                    all[town + 2].name};
  prose_.line(dice_.pick(kTitles), words);
  prose_.say(
      "[This chapter is about|In this chapter we meet|Here you will read about] {3}, {4}, "
      "{5}, and [others|their friends|some other people].",
      words);
  prose_.say(
      "[Our way leads|We shall travel|The road takes us] to {1}, {2}, and {7}, and [we shall "
      "learn|you will know in the end|you will find out] what [is meant by {a6}|{a6} is].",
      words);
  prose_.say(
      "[Read slowly|Read with care|Take your time], for [what is said once may be asked "
      "later|there are questions at the end|every answer is in the text].");
  prose_.end_paragraph();
}

void Chapter::heading(std::string_view form, const Words& words) {
  prose_.line("Section " + std::string(digits(++sections_)) + ". " + prose_.expand(form, words));
  section_start_ = prose_.size();
  about_ = {};
}

std::string Chapter::clause(Fact& fact, bool again) {
  const FactForms& forms = forms_of(fact.kind);
  if (!fact.told) {
    fact.told = true;
    told_.push_back(static_cast<std::size_t>(&fact - world_.facts.data()));
  }
  fact.said = prose_.size();
  return prose_.expand(dice_.pick(again ? forms.again : forms.clauses), fact.words);
}

void Chapter::tell(Fact& fact) {
  const bool again = about_ == fact.subject() && dice_.chance(70);
  const std::string told = clause(fact, again);
  again ? prose_.say(kTellingsOfTheSame, {told}) : prose_.say(kTellings, {told});
  about_ = names_another(fact.kind) ? std::string_view() : fact.subject();
}

void Chapter::repeat(Fact& fact) {
  const std::string question = prose_.expand(dice_.pick(forms_of(fact.kind).questions), fact.words);
  prose_.say("[Let us repeat|Once more|A quick question|We repeat]: {0} {^1}.",
             {question, clause(fact)});
  about_ = {};
}

void Chapter::recall(Fact& fact) {
  prose_.say(kRecalls, {clause(fact)});
  about_ = {};
}

void Chapter::recall_related(const Fact& fact) {
  Fact* related = told(Said::kAnyTime, [&](const Fact& other) {
    return other.subject() == fact.value() || (other.value() == fact.value() && &other != &fact);
  });
  if (related != nullptr) {
    recall(*related);
  }
}

std::string Chapter::introduced(const Entity& person) {
  Fact& trade = world_.find(FactKind::kTrade, person.name);
  Fact& home = world_.find(FactKind::kHome, person.name);
  if (!trade.told || !home.told || home.said >= section_start_) {
    return std::string(person.name);
  }
  trade.said = home.said = prose_.size();
  return prose_.expand("{0}, the {1} from {2},", {person.name, trade.value(), home.value()});
}

Fact* Chapter::told(Said when, const Filter& filter) {
  const int choices = when == Said::kLately ? 8 : when == Said::kLongAgo ? 4 : 1;
  Fact* found = nullptr;
  for (int attempt = 0, good = 0; attempt < 32 && good < choices && !told_.empty(); ++attempt) {
    Fact& fact = world_.facts[dice_.pick(told_)];
    // What this section has said is not asked in it.
    if (fact.said >= section_start_ || (filter && !filter(fact))) {
      continue;
    }
    ++good;
    if (found == nullptr || (fact.said < found->said) == (when == Said::kLongAgo)) {
      found = &fact;
    }
  }
  return found;
}

Fact* Chapter::told(FactKind kind) {
  return told(Said::kAnyTime, [&](const Fact& fact) { return fact.kind == kind; });
}

std::optional<std::string_view> Chapter::other_value(const Fact& fact) {
  if (fact.kind == FactKind::kSibling) {
    return std::nullopt;  // a sister's name would be put for a brother's
  }
  const auto start = dice_.below(static_cast<std::uint32_t>(world_.facts.size()));
  for (std::size_t i = 0; i < world_.facts.size(); ++i) {
    const Fact& other = world_.facts[(start + i) % world_.facts.size()];
    if (other.kind == fact.kind && other.value() != fact.value() && !fact.names(other.value())) {
      return other.value();
    }
  }
  return std::nullopt;
}

std::string Chapter::claim(const Fact& fact, std::string_view value) {
  Words words = fact.words;
  words[1] = value;
  return prose_.expand(dice_.pick(forms_of(fact.kind).clauses), words);
}

void Chapter::new_topic() {
  auto& all = world_.entities;
  const auto has_more = [](const Entity& entity) { return entity.told < entity.facts.size(); };
  Entity* chosen = nullptr;
  for (int attempt = 0; attempt < 40; ++attempt) {
    chosen = &all[dice_.below(static_cast<std::uint32_t>(all.size()))];
    if (attempt < 8 ? chosen->told == 0 : has_more(*chosen)) {
      break;
    }
  }
  has_more(*chosen) ? topic(*chosen) : dealings();
}

void Chapter::topic(Entity& entity) {
  const TopicForms& forms = forms_of(entity.topic);
  const auto topic = static_cast<std::size_t>(entity.topic);
  const auto has_more = [&] { return entity.told < entity.facts.size(); };
  const auto next = [&]() -> Fact& { return world_.facts[entity.facts[entity.told++]]; };
  const Words words{entity.name, {}, {}, entity.he, entity.his};
  heading(dice_.pick(entity.told == 0 ? forms.headings : forms.later_headings), words);
  if (entity.told == 0) {
    prose_.say(openings_[topic].draw(dice_), words);
  }
  const std::size_t first = entity.told;
  for (int left = dice_.range(4, 7); left > 0 && has_more(); --left) {
    Fact& fact = next();
    if (about_ == entity.name && !names_another(fact.kind) && left > 1 && has_more() &&
        dice_.chance(25)) {
      const std::string beginning = clause(fact);
      prose_.say("{0}, and {1}.", {beginning, clause(next(), true)});
      continue;
    }
    tell(fact);
    if (dice_.chance(35)) {
      recall_related(fact);
    }
    if (left > 1 && dice_.chance(35)) {
      prose_.say(scenes_[topic].draw(dice_), words);
    }
  }
  if (dice_.chance(50)) {
    const auto count = static_cast<std::uint32_t>(entity.told - first);
    repeat(world_.facts[entity.facts[first + dice_.below(count)]]);
  }
  prose_.end_paragraph();
}

void Chapter::notes() {
  heading("[A Short List|What We Know so Far|Notes|To Be Learned by Heart]");
  const auto first = dice_.below(static_cast<std::uint32_t>(world_.entities.size()));
  int left = dice_.range(3, 5);
  for (std::size_t i = 0; i < world_.entities.size() && left > 0; ++i) {
    const Entity& entity = world_.entities[(first + i) % world_.entities.size()];
    std::string list;
    for (const std::size_t index : entity.facts) {
      Fact& fact = world_.facts[index];
      const std::string_view note = forms_of(fact.kind).note;
      if (fact.told && !note.empty() && dice_.chance(70)) {
        list.append(list.empty() ? "" : ", ").append(prose_.expand(note, fact.words));
        fact.said = prose_.size();
      }
    }
    if (!list.empty()) {
      prose_.line("Note {0}, {1}: {2}.", {digits(++notes_), entity.name, list});
      --left;
    }
  }
}

}  // namespace carope::synth
