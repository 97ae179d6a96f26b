#pragma once

#include <CLI/CLI.hpp>

// One function a command, each in a file of its own: it adds the command and says what to run.
namespace carope {

void add_config(CLI::App& app);
void add_data(CLI::App& app);
void add_data_fetch(CLI::App& data);
void add_data_inspect(CLI::App& data);
void add_data_prepare(CLI::App& data);
void add_data_synth(CLI::App& data);
void add_devices(CLI::App& app);
void add_encodings(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_report(CLI::App& app);
void add_reproduce(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_tokenizer_decode(CLI::App& tokenizer);
void add_tokenizer_encode(CLI::App& tokenizer);
void add_tokenizer_fetch(CLI::App& tokenizer);
void add_tokenizer_train(CLI::App& tokenizer);
void add_train(CLI::App& app);

}  // namespace carope
