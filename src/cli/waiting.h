#pragma once

namespace carope {

/// Starts this program anew with threads that wait for each other without spinning for long, unless
/// the environment says how they wait. Spinning takes the cores from those that work, the more so
/// where others use the machine too, and OpenMP reads its settings before main() begins.
void wait_without_spinning(char** argv);

}  // namespace carope
