#pragma once

#include <string_view>

// What the synthetic school book speaks about. Every list is short, so that a small model has seen
// all its words soon; which word belongs to which is drawn anew for each document.
namespace carope::synth {

/// Names are made of three pieces, so that a name that is new costs a reader much and a name that
/// was read before nothing: the first piece tells which of those in the document it is.
inline constexpr std::string_view kOnsets[] = {
    "Bal", "Ben", "Bor", "Cal", "Cor", "Dan", "Del",  "Dor", "Fal", "Fen",
    "Gar", "Gil", "Hal", "Hel", "Jas", "Jor", "Kal",  "Kes", "Lan", "Lor",
    "Mal", "Mir", "Nal", "Ner", "Pal", "Per", "Quil", "Ran", "Ros", "Sel",
    "Sil", "Tal", "Tor", "Val", "Ver", "Wil", "Yar",  "Zan", "Zel", "Tur"};
inline constexpr std::string_view kMiddles[] = {"ab", "ad", "ag", "am", "eb", "ed", "em",
                                                "ep", "ib", "id", "im", "ip", "ob", "od",
                                                "om", "op", "ub", "ud", "um", "up"};
inline constexpr std::string_view kWomenEndings[] = {"a", "ia", "ine", "eth", "ella", "ora"};
inline constexpr std::string_view kMenEndings[] = {"o", "us", "ard", "ek", "in", "or"};
inline constexpr std::string_view kTownEndings[] = {"ham", "ford", "wick", "ton", "stead", "ley"};
inline constexpr std::string_view kRiverEndings[] = {"are", "ene", "ire", "ore"};
/// Of words that no dictionary has: what they mean is said once in each document.
inline constexpr std::string_view kTermEndings[] = {"ick", "ow", "ock", "ent", "et", "all"};
inline constexpr std::string_view kAnimalEndings[] = {"el", "urn", "olt", "een", "usk", "art"};

inline constexpr std::string_view kPets[] = {
    "Bram",   "Pip",   "Moss",   "Tansy", "Rufus",  "Button", "Biscuit", "Shadow",
    "Nettle", "Patch", "Clover", "Smoke", "Pepper", "Daisy",  "Thistle", "Fern"};
inline constexpr std::string_view kPetKinds[] = {"dog", "cat", "goat", "donkey", "pony", "parrot"};

/// A good that a town sells, and what it is sold by.
struct Good {
  std::string_view name, unit, units;
};
inline constexpr Good kGoods[] = {
    {"wool", "sack", "sacks"},     {"honey", "jar", "jars"},       {"salt", "sack", "sacks"},
    {"cheese", "wheel", "wheels"}, {"paper", "bundle", "bundles"}, {"linen", "roll", "rolls"},
    {"barley", "sack", "sacks"},   {"tea", "box", "boxes"},        {"rope", "roll", "rolls"},
    {"soap", "block", "blocks"},   {"ink", "bottle", "bottles"},   {"leather", "roll", "rolls"},
    {"oil", "bottle", "bottles"},  {"butter", "tub", "tubs"},      {"silk", "roll", "rolls"},
    {"flour", "sack", "sacks"},    {"wax", "block", "blocks"},     {"cider", "barrel", "barrels"},
    {"jam", "jar", "jars"},        {"mustard", "pot", "pots"}};
inline constexpr std::string_view kLandmarks[] = {
    "stone tower",  "wooden bridge",   "clock house", "round well",  "tall mill",
    "white school", "old library",     "iron gate",   "bell tower",  "glass garden",
    "long hall",    "marble fountain", "red barn",    "paved square"};
inline constexpr std::string_view kDays[] = {"Mondays", "Tuesdays",  "Wednesdays", "Thursdays",
                                             "Fridays", "Saturdays", "Sundays"};
inline constexpr std::string_view kEvents[] = {"great fire",   "great flood", "hard winter",
                                               "long drought", "great storm", "rich harvest"};

/// A trade and its plural.
struct Trade {
  std::string_view one, many;
};
inline constexpr Trade kTrades[] = {
    {"baker", "bakers"},         {"miller", "millers"},       {"weaver", "weavers"},
    {"potter", "potters"},       {"smith", "smiths"},         {"carpenter", "carpenters"},
    {"teacher", "teachers"},     {"doctor", "doctors"},       {"fisher", "fishers"},
    {"shepherd", "shepherds"},   {"gardener", "gardeners"},   {"printer", "printers"},
    {"tailor", "tailors"},       {"cook", "cooks"},           {"sailor", "sailors"},
    {"painter", "painters"},     {"innkeeper", "innkeepers"}, {"farmer", "farmers"},
    {"beekeeper", "beekeepers"}, {"mason", "masons"}};
inline constexpr std::string_view kColours[] = {"green",  "blue",  "red",   "brown",  "grey",
                                                "yellow", "white", "black", "orange", "purple"};
inline constexpr std::string_view kFoods[] = {
    "barley soup", "plum cake", "apple pie", "onion bread", "fried fish",
    "goat cheese", "pea soup",  "warm milk", "honey cake",  "roast duck",
    "egg salad",   "pear jam",  "rye bread", "nut pudding"};
inline constexpr std::string_view kTreasures[] = {
    "silver key", "old map",     "gold ring",  "red book",   "pocket watch",
    "blue stone", "long letter", "ivory comb", "small lamp", "tin whistle"};
inline constexpr std::string_view kHidingPlaces[] = {
    "under the stairs",    "behind the clock",      "in a tin box",       "in the attic",
    "beneath the old bed", "on the top shelf",      "in a clay jar",      "behind the stove",
    "under a loose board", "in the kitchen drawer", "next to the window", "inside a wool sock"};
inline constexpr std::string_view kItems[] = {
    "plums",  "pears", "nuts",     "eggs",   "candles", "buttons", "shells",  "ribbons",
    "stamps", "beads", "feathers", "apples", "needles", "pebbles", "pencils", "cherries"};

/// Things that words can mean, in kinds whose material and purpose fit.
struct ThingKind {
  std::string_view materials[5], things[6], purposes[6];
};
inline constexpr ThingKind kThings[] = {{{"wooden", "clay", "copper", "glass", "tin"},
                                         {"cup", "jar", "box", "bowl", "basin", "bucket"},
                                         {"carrying eggs", "measuring salt", "storing seeds",
                                          "keeping letters", "catching rain", "drying herbs"}},
                                        {{"iron", "copper", "bone", "wooden", "silver"},
                                         {"hook", "knife", "comb", "hammer", "spoon", "brush"},
                                         {"mending nets", "cutting reeds", "cleaning wool",
                                          "stirring paint", "opening shells", "marking sheep"}},
                                        {{"copper", "wooden", "silver", "brass", "bone"},
                                         {"bell", "drum", "whistle", "horn", "rattle", "gong"},
                                         {"calling goats", "waking pupils", "greeting guests",
                                          "warning boats", "opening markets", "leading dances"}}};
inline constexpr std::string_view kSizes[] = {"small", "large", "long", "flat", "round", "heavy"};

inline constexpr std::string_view kAnimals[] = {"bird",   "beetle", "toad",   "frog",
                                                "lizard", "snail",  "turtle", "duck"};
inline constexpr std::string_view kAnimalSizes[] = {"small", "large", "slender",
                                                    "round", "tiny",  "stout"};
inline constexpr std::string_view kHabitats[] = {
    "in deep caves",   "on sandy shores",   "in quiet ponds",  "under fallen leaves",
    "in hollow trees", "on bare mountains", "in wet meadows",  "between warm stones",
    "in thick hedges", "near salt lakes",   "in dark forests", "along slow streams"};
inline constexpr std::string_view kDiets[] = {
    "soft grass",   "wild berries", "water plants", "small worms", "fallen fruit", "pine seeds",
    "young leaves", "sweet roots",  "green moss",   "flower buds", "ripe grain",   "tiny flies"};
inline constexpr std::string_view kHours[] = {"at night",      "at dawn",        "at noon",
                                              "at dusk",       "in the morning", "in the evening",
                                              "before storms", "after rain"};

}  // namespace carope::synth
