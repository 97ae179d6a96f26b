#pragma once

#include <string>
#include <string_view>

// Standard input and output, byte for byte.
namespace carope {

/// A file's content; that of standard input if the name is empty.
std::string read_input(const std::string& file);

/// Writes and flushes; throws a FileError if it cannot.
void write_output(std::string_view bytes);

/// Flushes what was printed; throws a FileError, with the reason, if any of it could not be
/// written.
void finish_output();

}  // namespace carope
