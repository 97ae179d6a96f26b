#pragma once

#include <string>
#include <string_view>

// Standard input and output, byte for byte.
namespace carope {

/// Gives a program that was started without standard streams some on which every access fails, so
/// that no file it opens takes their place and gets what was meant for them.
void open_closed_streams();

/// A file's content; that of standard input if the name is empty.
std::string read_input(const std::string& file);

/// Writes and flushes; throws a FileError if it cannot.
void write_output(std::string_view bytes);

/// Flushes what was printed; throws a FileError, with the reason, if any of it could not be
/// written.
void finish_output();

}  // namespace carope
