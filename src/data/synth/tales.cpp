#include "data/synth/chapter.h"

// The sections of a chapter in which people talk, write, travel and deal with each other.
namespace carope::synth {
namespace {

constexpr std::string_view kTalks[] = {
    "\"{0}\" asks {1}. \"{^2},\" [says|answers|replies] {3}.",
    "\"{0}\" asks {1}. {3} [thinks for a moment|does not have to think|looks up|smiles]. "
    "\"{^2},\" [comes the answer|is the answer].",
    "{1} [wants to know|asks|turns to {3} and asks]: \"{0}\" {3} [answers|replies|says]: "
    "\"{^2}.\""};

}  // namespace

const Entity& Chapter::somebody_but(const Entity& person) {
  while (true) {
    const Entity& other = somebody();
    if (&other != &person) {
      return other;
    }
  }
}

void Chapter::conversation() {
  const Entity& asking = somebody();
  const Entity& answering = somebody_but(asking);
  heading("[{0} Asks {1}|A Talk between {0} and {1}|{0} and {1} Talk|What {0} Wanted to Know]",
          {asking.name, answering.name});
  const std::string who = introduced(asking);
  prose_.say(
      "{0} and {1} [sit by the fire|wait for the rain to end|walk home from the market|rest "
      "under a tree|drink tea in the garden].",
      {who, answering.name});
  const Filter about_others = [&](const Fact& fact) {
    return !fact.names(asking.name) && !fact.names(answering.name);
  };
  for (int left = dice_.range(3, 5); left > 0; --left) {
    Fact* fact = told(any_distance(), about_others);
    if (fact == nullptr) {
      break;
    }
    const auto wrong = other_value(*fact);
    if (wrong && dice_.chance(20)) {
      const std::string opinion = claim(*fact, *wrong);
      prose_.say("\"I think that {0},\" says {1}. \"No,\" [says|answers|replies] {3}, \"{2}.\"",
                 {opinion, asking.name, clause(*fact), answering.name});
    } else {
      const std::string question =
          prose_.expand(dice_.pick(forms_of(fact->kind).questions), fact->words);
      prose_.say(kTalks, {question, asking.name, clause(*fact), answering.name});
    }
  }
  prose_.say(
      "[Then they are silent for a while|Then it is time to go|So the time passes quickly|"
      "Then both of them laugh].");
  prose_.end_paragraph();
}

void Chapter::letter() {
  const Entity& writer = somebody();
  const Entity& reader = somebody_but(writer);
  heading("[A Letter from {0}|{0} Writes to {1}|A Letter to {1}]", {writer.name, reader.name});
  const std::string who = introduced(writer);
  prose_.say("{0} [writes a letter|sends a few lines|writes] to {1}.", {who, reader.name});
  prose_.say(
      "\"Dear {0}, [you asked me what I know|I hope you are well|I have time at last|the winter "
      "is long here], [so I shall tell you|and I have news for you|and I write what I "
      "remember].",
      {reader.name});
  for (int left = dice_.range(3, 5); left > 0; --left) {
    Fact* fact = told(any_distance(), [&](const Fact& other) {
      return !other.names(writer.name) && !other.names(reader.name);
    });
    if (fact != nullptr) {
      prose_.say("[You know that {0}|You may remember that {0}|I have not forgotten that {0}|{0}].",
                 {clause(*fact)});
    }
  }
  prose_.say("[Come and see us soon|Write to me soon|Greet your neighbours]. Your friend {0}.\"",
             {writer.name});
  prose_.end_paragraph();
}

void Chapter::journey() {
  const Traveller& traveller = dice_.pick(world_.travellers);
  const Entity& person = world_.entities[traveller.person];
  Fact& place = world_.facts[traveller.place];
  Fact& home = world_.find(FactKind::kHome, person.name);
  heading("[{0} on the Road|A Journey|{0} Travels|{0} Sets Out]", {person.name});
  if (!home.told) {
    tell(home);
  } else if (!place.told) {
    recall(home);
  }
  for (int legs = dice_.range(1, 2); legs > 0; --legs) {
    const std::string_view from = place.value();
    std::string_view to = from;
    while (to == from) {
      to = world_.entities[world_.people + dice_.below(static_cast<std::uint32_t>(world_.towns))]
               .name;
    }
    const std::string who = introduced(person);
    const Words words{person.name, from, to, person.he, who};
    prose_.say(
        "[On a bright morning|On a windy day|One day|Before sunrise|After breakfast] {4} "
        "[packs a bag|takes a stick|fills a bottle|puts on strong shoes].",
        words);
    prose_.say("[{0}|Then {0}|Soon {0}] leaves {1} and [walks|rides|drives] to {2}.", words);
    place.words[1] = to;
    if (!place.told) {
      clause(place);
    }
    place.said = prose_.size();
    about_ = {};
    Fact& road = world_.road(from, to);
    if (road.told) {
      recall(road);
    } else {
      tell(road);
    }
    prose_.say(
        "[On the way|At noon|In the afternoon] {3} [rests under a tree|meets a shepherd|sees "
        "two deer|loses a glove|sings a song|talks to a pedlar].",
        words);
    Fact* known = told(Said::kAnyTime, [&](const Fact& fact) { return fact.subject() == to; });
    if (known != nullptr) {
      recall(*known);
    }
  }
  prose_.say(
      "[There are friends to visit|There is work to do|The inn is good], so {0} stays for [a "
      "while|some days|a week].",
      {person.name});
  prose_.end_paragraph();
}

void Chapter::dealings() {
  Ledger& ledger = world_.ledgers[dice_.below(static_cast<std::uint32_t>(world_.ledgers.size()))];
  const auto count_of = [&](std::size_t i) -> Fact& { return world_.facts[ledger.counts[i]]; };
  heading("[Counting {^0}|The {^0} of {1}|{1} and {2} Count {^0}|A Lesson with {^0}]",
          {ledger.item, count_of(0).subject(), count_of(1).subject()});
  prose_.say("[Now we count|Take a pencil and count|This is about {0}|Here we need numbers].",
             {ledger.item});
  for (std::size_t i = 0; i < ledger.counts.size(); ++i) {
    if (!count_of(i).told) {
      tell(count_of(i));
    }
  }
  const auto people = static_cast<std::uint32_t>(ledger.counts.size());
  for (int left = dice_.range(2, 4); left > 0; --left) {
    const std::size_t i = dice_.below(people);
    const std::size_t j = (i + 1 + dice_.below(people - 1)) % people;
    Fact& mine = count_of(i);
    Fact& yours = count_of(j);
    const int before = value_of(mine.value());
    const int amount = dice_.range(2, 9);
    const bool loses = before >= amount + 2 && (before > 40 || dice_.chance(60));
    const bool gives = loses && dice_.chance(60);
    const int after = loses ? before - amount : before + amount;
    const Words words{mine.subject(), digits(amount), ledger.item,  yours.subject(),
                      digits(before), digits(after),  mine.words[3]};
    prose_.say(gives   ? "[Then|Later|One day|In the evening] {0} gives {1} {2} to {3}."
               : loses ? "[Then|Later|Next day|By bad luck] {0} loses {1} {2} [on the road|in the "
                         "grass|near the well]."
                       : "[Then|Later|Next day|By good luck] {0} [buys|finds] {1} more {2}.",
               words);
    mine.words[1] = digits(after);
    if (gives) {
      yours.words[1] = digits(value_of(yours.value()) + amount);
    }
    if (dice_.chance(45)) {
      prose_.say(loses ? "{4} minus {1} is {5}, so {0} now has {5} {2}."
                       : "{4} plus {1} is {5}, so {0} now has {5} {2}.",
                 words);
    }
    mine.said = prose_.size();
  }
  prose_.say(
      "[Keep count, for it may be asked|Remember how many each one has|Now you know who has "
      "the most|That is enough counting for today].");
  prose_.end_paragraph();
}

}  // namespace carope::synth
