#pragma once

#include "machine.h"

// The kernels of a program, in the PTX that its compiler left in it.
namespace carope::ptx {

/// What __cudaRegisterFatBinary() is handed.
void add_fat_binary(const void* wrapper);

/// The latest architecture there is PTX for, as 90, or 0.
int newest_architecture();

/// The kernel of this name, for the newest architecture; throws if there is none.
const Kernel& kernel_named(const std::string& name);

}  // namespace carope::ptx
