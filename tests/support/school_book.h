#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace carope::test {

/// What an attentive reader makes of a document of the synthetic corpus.
struct Reading {
  std::vector<std::string> mistakes;  // contradictions, wrong answers, questions not understood
  std::size_t facts = 0;              // told
  std::size_t events = 0;             // that changed a fact
  std::size_t sums = 0;               // additions, subtractions and multiplications
  /// For each question, how many words before it the fact was last mentioned.
  std::vector<std::size_t> distances;
};

/// Reads a document from its first word to its last, knowing nothing of how it was made: keeps what
/// is stated, follows what changes, and compares every answer with what was read before.
Reading read_school_book(const std::string& document);

}  // namespace carope::test
