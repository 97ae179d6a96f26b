#include "data/synth/world.h"

#include <algorithm>

#include "core/error.h"
#include "data/synth/words.h"

namespace carope::synth {
namespace {

/// A deck of the whole list.
template <class T, std::size_t N>
Deck<T> deck(const T (&list)[N]) {
  return Deck<T>(std::span<const T>(list));
}

}  // namespace

class World::Maker {
 public:
  Maker(World& world, Dice& dice) : world_(world), dice_(dice) {}

  void people() {
    world_.people = static_cast<std::size_t>(dice_.range(6, 9));
    for (std::size_t i = 0; i < world_.people; ++i) {
      world_.entities.push_back(dice_.chance(50) ? Entity{Topic::kPerson, woman(), "she", "her"}
                                                 : Entity{Topic::kPerson, man(), "he", "his"});
    }
  }

  void towns() {
    world_.towns = static_cast<std::size_t>(dice_.range(4, 6));
    auto onsets = deck(kOnsets);
    for (std::size_t i = 0; i < world_.towns; ++i) {
      world_.entities.push_back({Topic::kTown, name(onsets, kTownEndings), "it", "its"});
    }
  }

  void facts_of_people() {
    auto trades = deck(kTrades);
    auto pets = deck(kPets);
    auto treasures = deck(kTreasures);
    auto hiding_places = deck(kHidingPlaces);
    for (std::size_t i = 0; i < world_.people; ++i) {
      add(i, FactKind::kHome, town());
      add(i, FactKind::kTrade, trades.draw(dice_).one);
      add(i, FactKind::kAge, digits(dice_.range(18, 79)));
      add(i, FactKind::kTeacher, somebody());
      const std::string_view pet = pets.draw(dice_);
      add(i, FactKind::kPet, pet, dice_.pick(kPetKinds));
      add(i, FactKind::kCoat, dice_.pick(kColours));
      add(i, FactKind::kFood, dice_.pick(kFoods));
      const std::string_view treasure = treasures.draw(dice_);
      add(i, FactKind::kTreasure, hiding_places.draw(dice_), treasure);
      const std::size_t other =
          (i + 1 + dice_.below(static_cast<std::uint32_t>(world_.people) - 1)) % world_.people;
      add(i, FactKind::kFriend, world_.entities[other].name);
      if (dice_.chance(40)) {
        const bool sister = dice_.chance(50);
        add(i, FactKind::kSibling, sister ? woman() : man(), sister ? "sister" : "brother");
      }
    }
  }

  void facts_of_towns() {
    auto rivers = deck(kOnsets);
    auto goods = deck(kGoods);
    auto landmarks = deck(kLandmarks);
    const std::size_t end = world_.people + world_.towns;
    for (std::size_t i = world_.people; i < end; ++i) {
      const Good& good = goods.draw(dice_);
      const std::string_view landmark = landmarks.draw(dice_);
      add(i, FactKind::kRiver, name(rivers, kRiverEndings));
      add(i, FactKind::kGood, good.name);
      add(i, FactKind::kInhabitants, digits(10 * dice_.range(20, 499)));
      add(i, FactKind::kFounded, digits(dice_.range(1101, 1499)));
      add(i, FactKind::kMarket, dice_.pick(kDays));
      add(i, FactKind::kLandmark, landmark);
      add(i, FactKind::kBuilder, somebody(), landmark);
      add(i, FactKind::kMayor, somebody());
      add(i, FactKind::kPrice, digits(dice_.range(2, 12)), good.unit);
      world_.facts.back().words[5] = good.name;
      world_.facts.back().words[6] = good.units;
      auto events = deck(kEvents);
      for (int count = dice_.range(1, 2); count > 0; --count) {
        const std::string_view event = events.draw(dice_);
        add(i, FactKind::kEvent, digits(dice_.range(1501, 1899)), event);
      }
      for (std::size_t j = world_.people; j < i; ++j) {
        // No detour is shorter than the straight road, since no road is twice as long as another.
        const bool forth = dice_.chance(50);
        const std::size_t road =
            changing(forth ? i : j, FactKind::kDistance, digits(dice_.range(20, 40)),
                     world_.entities[forth ? j : i].name);
        if (dice_.chance(40)) {  // the others are for travellers to find out
          world_.entities[forth ? i : j].facts.push_back(road);
        }
      }
    }
  }

  void animals() {
    auto onsets = deck(kOnsets);
    auto habitats = deck(kHabitats);
    auto diets = deck(kDiets);
    for (int count = dice_.range(2, 4); count > 0; --count) {
      const std::size_t i = world_.entities.size();
      world_.entities.push_back({Topic::kAnimal, common_noun(onsets, kAnimalEndings), "it", "its"});
      add(i, FactKind::kAnimal,
          phrase({dice_.pick(kAnimalSizes), dice_.pick(kColours), dice_.pick(kAnimals)}));
      add(i, FactKind::kHabitat, habitats.draw(dice_));
      add(i, FactKind::kDiet, diets.draw(dice_));
      add(i, FactKind::kEggs, digits(dice_.range(2, 12)));
      add(i, FactKind::kHour, dice_.pick(kHours));
      add(i, FactKind::kSeenNear, town());
    }
  }

  void terms() {
    auto onsets = deck(kOnsets);
    auto users = deck(kTrades);
    for (int count = dice_.range(4, 6); count > 0; --count) {
      const std::size_t i = world_.entities.size();
      world_.entities.push_back({Topic::kTerm, common_noun(onsets, kTermEndings), "it", "its"});
      const ThingKind& kind = dice_.pick(kThings);
      add(i, FactKind::kMeaning,
          phrase({dice_.pick(kSizes), dice_.pick(kind.materials), dice_.pick(kind.things), "for",
                  dice_.pick(kind.purposes)}));
      add(i, FactKind::kMadeIn, town());
      add(i, FactKind::kUsers, users.draw(dice_).many);
    }
  }

  /// The order in which the facts of each are told. A thing's nature comes before the rest.
  void shuffle() {
    for (Entity& entity : world_.entities) {
      const bool has_nature = entity.topic == Topic::kAnimal || entity.topic == Topic::kTerm;
      for (std::size_t first = has_nature ? 1 : 0; first < entity.facts.size(); ++first) {
        const auto left = static_cast<std::uint32_t>(entity.facts.size() - first);
        std::swap(entity.facts[first], entity.facts[first + dice_.below(left)]);
      }
    }
  }

  void ledgers() {
    auto items = deck(kItems);
    for (int count = dice_.range(2, 4); count > 0; --count) {
      Ledger ledger{items.draw(dice_), {}};
      const std::size_t first = dice_.below(static_cast<std::uint32_t>(world_.people));
      for (int owner = 0, owners = dice_.range(2, 3); owner < owners; ++owner) {
        const std::size_t i = (first + static_cast<std::size_t>(owner)) % world_.people;
        ledger.counts.push_back(
            changing(i, FactKind::kCount, digits(dice_.range(8, 30)), ledger.item));
      }
      world_.ledgers.push_back(std::move(ledger));
    }
  }

  void travellers() {
    const std::size_t first = dice_.below(static_cast<std::uint32_t>(world_.people));
    for (std::size_t k = 0; k < 3; ++k) {
      const std::size_t i = (first + k) % world_.people;
      const std::string_view home = world_.find(FactKind::kHome, world_.entities[i].name).value();
      world_.travellers.push_back({i, changing(i, FactKind::kPlace, home)});
    }
  }

 private:
  std::size_t changing(std::size_t entity, FactKind kind, std::string_view value,
                       std::string_view extra = {}) {
    const Entity& about = world_.entities[entity];
    world_.facts.push_back({kind, {about.name, value, extra, about.he, about.his}});
    return world_.facts.size() - 1;
  }
  void add(std::size_t entity, FactKind kind, std::string_view value, std::string_view extra = {}) {
    world_.entities[entity].facts.push_back(changing(entity, kind, value, extra));
  }

  /// An invented name. Those of one deck differ in their first piece.
  std::string_view name(Deck<std::string_view>& onsets, std::span<const std::string_view> endings) {
    std::string& text = world_.phrases_.emplace_back(onsets.draw(dice_));
    text += dice_.pick(kMiddles);
    return text += dice_.pick(endings);
  }
  std::string_view common_noun(Deck<std::string_view>& onsets,
                               std::span<const std::string_view> endings) {
    name(onsets, endings);
    std::string& text = world_.phrases_.back();
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
    return text;
  }

  std::string_view woman() { return name(people_, kWomenEndings); }
  std::string_view man() { return name(people_, kMenEndings); }
  /// Somebody of whom nothing else is told.
  std::string_view somebody() { return dice_.chance(50) ? woman() : man(); }
  std::string_view town() {
    return world_.entities[world_.people + dice_.below(static_cast<std::uint32_t>(world_.towns))]
        .name;
  }
  std::string_view phrase(std::initializer_list<std::string_view> words) {
    std::string& text = world_.phrases_.emplace_back();
    for (const std::string_view word : words) {
      text.append(text.empty() ? "" : " ").append(word);
    }
    return text;
  }

  World& world_;
  Dice& dice_;
  Deck<std::string_view> people_ = deck(kOnsets);
};

World::World(Dice& dice) {
  facts.reserve(256);
  entities.reserve(32);
  Maker maker(*this, dice);
  maker.people();
  maker.towns();
  maker.facts_of_people();
  maker.facts_of_towns();
  maker.animals();
  maker.terms();
  maker.ledgers();
  maker.travellers();
  maker.shuffle();
}

Fact& World::find(FactKind kind, std::string_view subject) {
  const auto found = std::find_if(facts.begin(), facts.end(), [&](const Fact& fact) {
    return fact.kind == kind && fact.subject() == subject;
  });
  check<Error>(found != facts.end(), "nothing is known of {}", subject);
  return *found;
}

Fact& World::road(std::string_view from, std::string_view to) {
  const auto found = std::find_if(facts.begin(), facts.end(), [&](const Fact& fact) {
    return fact.kind == FactKind::kDistance && fact.names(from) && fact.names(to);
  });
  check<Error>(found != facts.end(), "no road from {} to {}", from, to);
  return *found;
}

}  // namespace carope::synth
