#include "data/synth/chapter.h"

// The questions of a chapter, with their answers.
namespace carope::synth {

void Chapter::exercises(int count, std::string_view title) {
  heading(title);
  prose_.line(
      "[Cover the text and answer|Write down the answers to|Without looking back, answer|Think "
      "well "
      "before you answer] questions {0} to {1}.",
      {digits(questions_ + 1), digits(questions_ + count)});
  for (int i = 0; i < count; ++i) {
    prose_.say("Question {0}.", {digits(++questions_)});
    const std::uint32_t lot = dice_.below(100);
    const bool asked =
        (lot < 16 && problem()) || (lot < 30 && question_about_claim()) || question_about_fact();
    if (!asked) {
      problem_of_carts();
    }
    prose_.end_paragraph();
  }
}

bool Chapter::question_about_fact() {
  Fact* fact = told(any_distance());
  if (fact == nullptr) {
    return false;
  }
  const FactForms& forms = forms_of(fact->kind);
  prose_.say(dice_.pick(forms.questions), fact->words);
  if (dice_.chance(25)) {
    fact->said = prose_.size();
    prose_.say(forms.brief, fact->words);
  } else {
    prose_.say("{0}.", {clause(*fact)});
  }
  return true;
}

bool Chapter::question_about_claim() {
  Fact* fact = told(any_distance());
  if (fact == nullptr) {
    return false;
  }
  const auto wrong = dice_.chance(50) ? other_value(*fact) : std::nullopt;
  const std::string opinion = claim(*fact, wrong.value_or(fact->value()));
  prose_.say("Is it true that {0}? {1}, {2}.", {opinion, wrong ? "No" : "Yes", clause(*fact)});
  return true;
}

bool Chapter::problem() {
  switch (dice_.below(6)) {
    case 0:
      return problem_of_age();
    case 1:
      return problem_of_price();
    case 2:
      return problem_of_years();
    case 3:
      return problem_of_eggs();
    case 4:
      return problem_of_roads();
    default:
      return problem_of_carts();
  }
}

bool Chapter::problem_of_age() {
  Fact* age = told(FactKind::kAge);
  if (age == nullptr) {
    return false;
  }
  const int years = dice_.range(2, 20);
  age->said = prose_.size();
  prose_.say(
      "How old will {0} be in {1} years? {0} is {2} years old, and {2} plus {1} is {3}, so "
      "{4} will be {3}.",
      {age->subject(), digits(years), age->value(), digits(value_of(age->value()) + years),
       age->words[3]});
  return true;
}

bool Chapter::problem_of_price() {
  Fact* price = told(FactKind::kPrice);
  if (price == nullptr) {
    return false;
  }
  const int amount = dice_.range(2, 9);
  price->said = prose_.size();
  prose_.say(
      "{0} buys {1} {2} of {3} in {4}. How many coins does {0} pay? In {4} {a7} of {3} costs "
      "{5} coins, and {1} times {5} is {6}.",
      {somebody().name, digits(amount), price->words[6], price->words[5], price->subject(),
       price->value(), digits(amount * value_of(price->value())), price->words[2]});
  return true;
}

bool Chapter::problem_of_years() {
  Fact* event = told(FactKind::kEvent);
  if (event == nullptr) {
    return false;
  }
  Fact& founded = world_.find(FactKind::kFounded, event->subject());
  if (!founded.told) {
    return false;
  }
  event->said = founded.said = prose_.size();
  prose_.say(
      "How many years after the founding of {0} was the {1}? {0} was founded in {2}, the {1} "
      "of {0} was in {3}, and {3} minus {2} is {4}.",
      {event->subject(), event->words[2], founded.value(), event->value(),
       digits(value_of(event->value()) - value_of(founded.value()))});
  return true;
}

bool Chapter::problem_of_eggs() {
  Fact* eggs = told(FactKind::kEggs);
  if (eggs == nullptr) {
    return false;
  }
  const int animals = dice_.range(2, 9);
  eggs->said = prose_.size();
  prose_.say(
      "How many eggs do {0} {1}s lay each spring? The {1} lays {2} eggs each spring, and {0} "
      "times {2} is {3}.",
      {digits(animals), eggs->subject(), eggs->value(), digits(animals * value_of(eggs->value()))});
  return true;
}

bool Chapter::problem_of_roads() {
  Fact* first = told(FactKind::kDistance);
  if (first == nullptr) {
    return false;
  }
  const std::string_view middle = first->words[2];
  Fact* second = told(Said::kAnyTime, [&](const Fact& fact) {
    return fact.kind == FactKind::kDistance && &fact != first && fact.names(middle);
  });
  if (second == nullptr) {
    return false;
  }
  first->said = second->said = prose_.size();
  prose_.say(
      "How far is it from {0} by way of {1} to {2}? It is {3} miles from {0} to {1}, it is {4} "
      "miles "
      "from {1} to {2}, and {3} plus {4} is {5}.",
      {first->subject(), middle, second->words[second->subject() == middle ? 2 : 0], first->value(),
       second->value(), digits(value_of(first->value()) + value_of(second->value()))});
  return true;
}

bool Chapter::problem_of_carts() {
  const int carts = dice_.range(2, 9);
  const int sacks = dice_.range(2, 12);
  prose_.say(
      "One [cart|boat|wagon] carries {0} [sacks|barrels|boxes]. How many do {1} of them carry? "
      "{1} times {0} is {2}.",
      {digits(sacks), digits(carts), digits(carts * sacks)});
  return true;
}

}  // namespace carope::synth
