#include "data/synth/grammar.h"

namespace carope::synth {
namespace {

constexpr FactForms kFactForms[] = {
    // kHome
    {.clauses = {{"{0} lives in {1}", "{0} has a house in {1}", "{0}'s home is in {1}"}},
     .again = {{"{3} lives in {1}", "{4} home is in {1}", "{3} has a house in {1}"}},
     .questions = {{"Where does {0} live?", "In which town is {0}'s home?"}},
     .brief = "In {1}.",
     .note = "home in {1}"},
    // kTrade
    {.clauses = {{"{0} is {a1}", "{0} works as {a1}", "{0} earns {4} bread as {a1}"}},
     .again = {{"{3} is {a1}", "{3} works as {a1}", "{3} earns {4} bread as {a1}"}},
     .questions = {{"What is {0}'s trade?", "What work does {0} do?"}},
     .brief = "{^3} is {a1}.",
     .note = "{1}"},
    // kAge
    {.clauses = {{"{0} is {1} years old", "{0} has lived for {1} years"}},
     .again = {{"{3} is {1} years old", "{3} has lived for {1} years"}},
     .questions = {{"How old is {0}?", "How many years has {0} lived?"}},
     .brief = "{1} years.",
     .note = "{1} years old"},
    // kTeacher
    {.clauses = {{"{0} was taught by {1}", "{1} taught {0}", "{0}'s teacher was {1}"}},
     .again = {{"{3} was taught by {1}", "{4} teacher was {1}"}},
     .questions = {{"Who taught {0}?", "Who was {0}'s teacher?"}},
     .brief = "{1}.",
     .note = "taught by {1}"},
    // kPet
    {.clauses = {{"{0} has {a2} called {1}", "{0}'s {2} is called {1}",
                  "the name of {0}'s {2} is {1}"}},
     .again = {{"{3} has {a2} called {1}", "{4} {2} is called {1}", "{3} has {a2} named {1}"}},
     .questions = {{"What is {0}'s {2} called?", "What is the name of {0}'s {2}?"}},
     .brief = "{1}.",
     .note = "{a2} called {1}"},
    // kCoat
    {.clauses = {{"{0} wears {a1} coat", "{0}'s coat is {1}"}},
     .again = {{"{3} wears {a1} coat", "{4} coat is {1}"}},
     .questions = {{"What colour is {0}'s coat?", "What is the colour of {0}'s coat?"}},
     .brief = "{^1}.",
     .note = "{a1} coat"},
    // kFood
    {.clauses = {{"{0} likes {1} best", "{0}'s favourite food is {1}",
                  "{0} could eat {1} every day"}},
     .again = {{"{3} likes {1} best", "{4} favourite food is {1}", "{3} could eat {1} every day"}},
     .questions = {{"What is {0}'s favourite food?", "What does {0} like best to eat?"}},
     .brief = "{^1}.",
     .note = "likes {1}"},
    // kTreasure
    {.clauses = {{"{0} keeps {4} {2} {1}", "{0}'s {2} lies {1}", "{0} hides {4} {2} {1}"}},
     .again = {{"{3} keeps {4} {2} {1}", "{4} {2} lies {1}", "{3} hides {4} {2} {1}"}},
     .questions = {{"Where does {0} keep {4} {2}?", "Where is {0}'s {2}?"}},
     .brief = "{^1}.",
     .note = ""},
    // kFriend
    {.clauses = {{"{0}'s best friend is {1}", "the best friend of {0} is {1}"}},
     .again = {{"{4} best friend is {1}"}},
     .questions = {{"Who is {0}'s best friend?", "Who is the best friend of {0}?"}},
     .brief = "{1}.",
     .note = "best friend {1}"},
    // kSibling
    {.clauses = {{"{1} is the {2} of {0}", "{0}'s {2} is {1}"}},
     .again = {{"{4} {2} is {1}", "{3} has a {2} whose name is {1}"}},
     .questions = {{"Who is the {2} of {0}?", "What is the name of the {2} of {0}?"}},
     .brief = "{1}.",
     .note = ""},
    // kRiver
    {.clauses = {{"{0} lies on the river {1}", "the river {1} flows through {0}",
                  "the river at {0} is the {1}"}},
     .again = {{"it lies on the river {1}", "the river {1} flows through it",
                "its river is the {1}"}},
     .questions = {{"On which river does {0} lie?", "Which river flows through {0}?"}},
     .brief = "The {1}.",
     .note = "river {1}"},
    // kGood
    {.clauses = {{"{0} is known for its {1}", "the people of {0} sell {1}",
                  "the best {1} comes from {0}"}},
     .again = {{"it is known for its {1}", "its people sell {1}", "the best {1} comes from there"}},
     .questions = {{"What is {0} known for?", "What do the people of {0} sell?"}},
     .brief = "{^1}.",
     .note = "{1}"},
    // kInhabitants
    {.clauses = {{"{0} has {1} inhabitants", "{1} people live in {0}"}},
     .again = {{"it has {1} inhabitants", "{1} people live there"}},
     .questions = {{"How many people live in {0}?", "How many inhabitants does {0} have?"}},
     .brief = "{1} people.",
     .note = "{1} people"},
    // kFounded
    {.clauses = {{"{0} was founded in {1}", "the first houses of {0} were built in {1}",
                  "the town of {0} was founded in the year {1}"}},
     .again = {{"it was founded in {1}", "its first houses were built in {1}"}},
     .questions = {{"When was {0} founded?", "In which year was {0} founded?"}},
     .brief = "In {1}.",
     .note = "founded in {1}"},
    // kMarket
    {.clauses = {{"the market of {0} is held on {1}", "{0} holds its market on {1}",
                  "market day in {0} is on {1}"}},
     .again = {{"its market is held on {1}", "it holds its market on {1}"}},
     .questions = {{"On which day is the market of {0} held?", "When is market day in {0}?"}},
     .brief = "On {1}.",
     .note = "market on {1}"},
    // kLandmark
    {.clauses = {{"in the middle of {0} stands {a1}", "{0} is proud of its {1}",
                  "the pride of {0} is its {1}"}},
     .again = {{"in the middle of it stands {a1}", "it is proud of its {1}"}},
     .questions = {{"What stands in the middle of {0}?", "What is the pride of {0}?"}},
     .brief = "{a1}.",
     .note = "{a1}"},
    // kBuilder
    {.clauses = {{"the {2} of {0} was built by {1}", "{1} built the {2} of {0}",
                  "the builder of the {2} of {0} was {1}"}},
     .again = {{"its {2} was built by {1}"}},
     .questions = {{"Who built the {2} of {0}?", "By whom was the {2} of {0} built?"}},
     .brief = "{1}.",
     .note = ""},
    // kMayor
    {.clauses = {{"the mayor of {0} is {1}", "{1} is the mayor of {0}"}},
     .again = {{"its mayor is {1}", "the mayor there is {1}"}},
     .questions = {{"Who is the mayor of {0}?", "What is the name of the mayor of {0}?"}},
     .brief = "{1}.",
     .note = "mayor {1}"},
    // kEvent
    {.clauses = {{"the {2} of {0} was in {1}", "in {1} the {2} came to {0}",
                  "the {2} came to {0} in {1}"}},
     .again = {{"its {2} was in {1}", "in {1} the town had its {2}"}},
     .questions = {{"When was the {2} of {0}?", "In which year did the {2} come to {0}?"}},
     .brief = "In {1}.",
     .note = "{2} in {1}"},
    // kPrice
    {.clauses = {{"in {0} {a2} of {5} costs {1} coins", "{a2} of {5} costs {1} coins in {0}",
                  "the people of {0} pay {1} coins for {a2} of {5}"}},
     .again = {{"there {a2} of {5} costs {1} coins"}},
     .questions = {{"How much does {a2} of {5} cost in {0}?",
                    "What is the price of {a2} of {5} in {0}?"}},
     .brief = "{1} coins.",
     .note = ""},
    // kDistance
    {.clauses = {{"the road from {0} to {2} is {1} miles long", "{0} and {2} are {1} miles apart",
                  "it is {1} miles from {0} to {2}"}},
     .again = {{"from there to {2} it is {1} miles"}},
     .questions = {{"How far is it from {0} to {2}?", "How long is the road from {0} to {2}?"}},
     .brief = "{1} miles.",
     .note = ""},
    // kAnimal
    {.clauses = {{"the {0} is {a1}", "{a0} is {a1}"}},
     .again = {{"it is {a1}"}},
     .questions = {{"What kind of animal is the {0}?", "What is the {0}?"}},
     .brief = "It is {a1}.",
     .note = "{1}"},
    // kHabitat
    {.clauses = {{"the {0} lives {1}", "the {0} is found {1}", "the {0} makes its home {1}"}},
     .again = {{"it lives {1}", "it is found {1}", "it makes its home {1}"}},
     .questions = {{"Where does the {0} live?", "Where is the {0} found?"}},
     .brief = "{^1}.",
     .note = "{1}"},
    // kDiet
    {.clauses = {{"the {0} eats {1}", "the {0} feeds on {1}", "the food of the {0} is {1}"}},
     .again = {{"it eats {1}", "it feeds on {1}", "its food is {1}"}},
     .questions = {{"What does the {0} eat?", "What is the food of the {0}?"}},
     .brief = "{^1}.",
     .note = "eats {1}"},
    // kEggs
    {.clauses = {{"the {0} lays {1} eggs each spring", "each spring the {0} lays {1} eggs"}},
     .again = {{"it lays {1} eggs each spring", "each spring it lays {1} eggs"}},
     .questions = {{"How many eggs does the {0} lay?", "How many eggs does {a0} lay each spring?"}},
     .brief = "{1} eggs.",
     .note = "{1} eggs"},
    // kHour
    {.clauses = {{"the {0} is awake {1}", "the {0} comes out {1}", "the {0} looks for food {1}"}},
     .again = {{"it is awake {1}", "it comes out {1}", "it looks for food {1}"}},
     .questions = {{"When is the {0} awake?", "When does the {0} come out?"}},
     .brief = "{^1}.",
     .note = "awake {1}"},
    // kSeenNear
    {.clauses = {{"the {0} is often seen near {1}", "many {0}s live near {1}"}},
     .again = {{"it is often seen near {1}", "many of them live near {1}"}},
     .questions = {{"Near which town is the {0} often seen?",
                    "Near which town do many {0}s live?"}},
     .brief = "Near {1}.",
     .note = "near {1}"},
    // kMeaning
    {.clauses = {{"{a0} is {a1}", "the word {0} means {a1}", "by {a0} we mean {a1}"}},
     .again = {{"it is {a1}"}},
     .questions = {{"What is {a0}?", "What does the word {0} mean?"}},
     .brief = "{a1}.",
     .note = "{a1}"},
    // kMadeIn
    {.clauses = {{"the best {0}s are made in {1}", "the best {0}s come from {1}"}},
     .again = {{"the best ones are made in {1}", "the best ones come from {1}"}},
     .questions = {{"Where are the best {0}s made?", "From which town do the best {0}s come?"}},
     .brief = "In {1}.",
     .note = "made in {1}"},
    // kUsers
    {.clauses = {{"{a0} is used by {1}", "{1} use {a0}", "{a0} is of great use to {1}"}},
     .again = {{"it is used by {1}", "{1} use it", "it is of great use to {1}"}},
     .questions = {{"Who uses {a0}?", "By whom is {a0} used?"}},
     .brief = "{^1}.",
     .note = "used by {1}"},
    // kCount
    {.clauses = {{"{0} has {1} {2}", "there are {1} {2} in {0}'s basket"}},
     .again = {{"{3} has {1} {2}", "there are {1} {2} in {4} basket"}},
     .questions = {{"How many {2} does {0} have?", "How many {2} are in {0}'s basket?"}},
     .brief = "{1} {2}.",
     .note = ""},
    // kPlace
    {.clauses = {{"{0} is staying in {1}", "{0} is now in {1}"}},
     .again = {{"{3} is staying in {1}", "{3} is now in {1}"}},
     .questions = {{"Where is {0} now?", "In which town is {0} staying?"}},
     .brief = "In {1}.",
     .note = ""},
};
static_assert(std::size(kFactForms) == static_cast<std::size_t>(FactKind::kPlace) + 1);

constexpr std::string_view kPersonHeadings[] = {"{0}", "The Story of {0}", "A Visit to {0}",
                                                "The Life of {0}", "Meeting {0}"};
constexpr std::string_view kPersonLater[] = {"More about {0}", "{0} Again", "A Second Visit to {0}",
                                             "What Else Is Known of {0}"};
constexpr std::string_view kPersonOpenings[] = {
    "[Here|Now] we [meet|get to know|turn to] {0}.",
    "This part of the [chapter|book] is about {0}.",
    "[Everybody|Nearly everybody|Every child] in the valley knows {0}.",
    "{0} [opens the door|looks up|smiles] when we [come in|knock|call].",
    "[We are glad|One is always glad] to [write|read|speak|hear] of {0}."};
constexpr std::string_view kPersonScenes[] = {
    "{^3} gets up [early|late] and [lights the stove|feeds the hens|opens the windows|sweeps the "
    "floor].",
    "[On Sundays|In the evening|After work] {3} [sits by the fire|walks in the fields|plays "
    "cards|reads the news].",
    "{^3} [speaks little|laughs often|sings at work|tells good stories], and [people like "
    "that|nobody minds|the children listen].",
    "The neighbours [trust|respect|often help|like] {0}.",
    "When the [bell rings|sun sets|rain stops], {0} [shuts the door|puts on a hat|goes out].",
    "As a child {0} [was often ill|swam in the river|climbed every tree|counted the stars].",
    "{^4} hands are [strong|never idle|quick], and {4} [eyes are sharp|voice is soft|step is "
    "light].",
    "{^3} has never [seen the sea|been to a city|told a lie|missed a feast]."};

constexpr std::string_view kTownHeadings[] = {"The Town of {0}", "{0}", "A Walk through {0}",
                                              "{0} and Its People", "How to Know {0}"};
constexpr std::string_view kTownLater[] = {"More about {0}", "{0} Again",
                                           "A Second Walk through {0}", "Other Things about {0}"};
constexpr std::string_view kTownOpenings[] = {
    "[Let us|We shall] now [look at|visit|turn to] {0}.",
    "{0} is [a quiet|a busy|a pleasant|an old|a friendly] town.",
    "[Travellers|Strangers|Guests] [are always welcome|seldom get lost|like to rest] in {0}.",
    "Of all the towns in [the valley|this chapter], {0} is the one with the [widest streets|lowest "
    "walls|most gardens|best bread].",
    "[On the map|From the hill] {0} is easy to find."};
constexpr std::string_view kTownScenes[] = {
    "The [streets|lanes|yards] are [clean|narrow|full of carts|shaded by trees].",
    "In [spring|summer] there are [flowers|swallows|children] everywhere, and in winter [the smoke "
    "rises straight up|everything is white|the nights are long].",
    "The houses are built of [brick|stone|timber] and have [green|red|grey] roofs.",
    "Old people sit [in the sun|at the doors|under the trees] and [talk of the past|play "
    "cards|watch the boats].",
    "[At noon|In the morning|At night] the [bells ring|gates are shut|lamps are lit].",
    "[Long ago|Once] there was a [castle|forest|lake] here, but nothing of it [is left|can be "
    "seen].",
    "The [school|inn|mill] is [always full|the oldest house|close to the gate].",
    "Nobody [is in a hurry|locks the door|goes hungry] there."};

constexpr std::string_view kAnimalHeadings[] = {"The {^0}", "About the {^0}", "How the {^0} Lives",
                                                "The {^0} and Its Ways"};
constexpr std::string_view kAnimalLater[] = {"More about the {^0}", "The {^0} Again"};
constexpr std::string_view kAnimalOpenings[] = {
    "Among the animals of this country [none is more curious than|we must not forget|children "
    "love] the {0}.",
    "[Few people have seen|It takes patience to watch|Hunters rarely catch] the {0}.",
    "The next [page|lesson] is about the {0}.",
    "Whoever walks [softly|without noise] may [see|hear|meet] the {0}."};
constexpr std::string_view kAnimalScenes[] = {
    "It [fears nothing but the fox|hides when it hears steps|is not afraid of people].",
    "In winter it [sleeps|grows fat|changes its coat|moves south].",
    "The young [stay with the mother|learn quickly|are blind at first].",
    "[Its eyes are large|Its feet are soft|Its voice is clear], and it [can wait for hours|moves "
    "very fast|never sleeps long].",
    "[Farmers|Children|Old books] say that it [brings luck|foretells rain|remembers faces]."};

constexpr std::string_view kTermHeadings[] = {"A Useful Word: {^0}", "The Word {^0}",
                                              "The Meaning of {^0}"};
constexpr std::string_view kTermLater[] = {"More about the Word {^0}", "The {^0} Again"};
constexpr std::string_view kTermOpenings[] = {
    "[Some|A few] words of this country [are not found in any other|must be explained|are very "
    "old].",
    "[Visitors|Children|Strangers] often ask about [a certain|one] word.",
    "We come to a word that [every child here knows|is heard every day|has no second meaning].",
    "Before we go on, a word must be [explained|learned]."};
constexpr std::string_view kTermScenes[] = {
    "[Nobody knows|It is not known] who [made the first one|found the word|used it first].",
    "In [old houses|many kitchens|most workshops] one [hangs|stands|lies] near the door.",
    "A good one lasts [for years|a lifetime|longer than its owner].",
    "[Write the word down|Learn the word|Say the word aloud], for it will [come again|be needed|be "
    "asked for]."};

constexpr TopicForms kTopicForms[] = {
    {kPersonHeadings, kPersonLater, kPersonOpenings, kPersonScenes},
    {kTownHeadings, kTownLater, kTownOpenings, kTownScenes},
    {kAnimalHeadings, kAnimalLater, kAnimalOpenings, kAnimalScenes},
    {kTermHeadings, kTermLater, kTermOpenings, kTermScenes},
};

}  // namespace

const FactForms& forms_of(FactKind kind) { return kFactForms[static_cast<std::size_t>(kind)]; }

const TopicForms& forms_of(Topic topic) { return kTopicForms[static_cast<std::size_t>(topic)]; }

}  // namespace carope::synth
