#pragma once

#include <string>

namespace carope::test {

/// What an exception of type E says; "(nothing thrown)" where there was none.
template <class E, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "(nothing thrown)";
}

}  // namespace carope::test
