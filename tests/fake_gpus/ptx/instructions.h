#pragma once

#include <bit>
#include <unordered_map>

#include "machine.h"

// What the machine does for each instruction, by its name.
namespace carope::ptx {

using Table = std::unordered_map<std::string, Instruction::Run>;

template <class F>
void for_each_lane(const Warp& w, const F& f) {
  for (Mask left = w.mask(); left != 0; left &= left - 1) {
    f(std::countr_zero(left));
  }
}

void add_arithmetic(Table& table);
void add_memory(Table& table);
void add_warp_wide(Table& table);
void add_products(Table& table);
void add_copies(Table& table);

}  // namespace carope::ptx
