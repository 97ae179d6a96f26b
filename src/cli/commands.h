#pragma once

#include <CLI/CLI.hpp>

// One function a command, each in a file of its own: it adds the command and says what to run.
namespace carope {

void add_data(CLI::App& app);
void add_demo(CLI::App& app);
void add_devices(CLI::App& app);
void add_encodings(CLI::App& app);
void add_tokenizer(CLI::App& app);

// Commands of a command.
void add_data_fetch(CLI::App& data);
void add_tokenizer_fetch(CLI::App& tokenizer);

}  // namespace carope
