// Loads, stores and atomic operations of each lane.
#include <algorithm>

#include "instructions.h"

namespace carope::ptx {
namespace {

/// Writes a value to a register that may be wider.
template <class T>
void put(const Warp& w, const Operand& to, int lane, T value) {
  if (to.bytes == static_cast<int>(sizeof(T))) {
    w.out<T>(to)[lane] = value;
  } else if (to.bytes == 2) {
    w.out<std::uint16_t>(to)[lane] = static_cast<std::uint16_t>(value);
  } else if (to.bytes == 4) {
    w.out<std::uint32_t>(to)[lane] = static_cast<std::uint32_t>(value);
  } else {
    w.out<std::uint64_t>(to)[lane] = static_cast<std::uint64_t>(value);
  }
}
template <class T>
T get(const Warp& w, const Operand& from, int lane) {
  return from.bytes == 2   ? static_cast<T>(w.in<std::uint16_t>(from)[lane])
         : from.bytes == 4 ? static_cast<T>(w.in<std::uint32_t>(from)[lane])
                           : static_cast<T>(w.in<std::uint64_t>(from)[lane]);
}

bool has_waited(const Warp& w, int lane) {
  return !w.block().launch().early || (w.waited >> lane & 1) != 0;
}

/// What a kernel may do while those before it are not done.
void check_read(const Warp& w, const Instruction& i, int lane, std::uint64_t at) {
  if (!has_waited(w, lane) && unfinished_writes().has(at)) {
    w.fail(i, lane, "a kernel before writes this, and was not waited for");
  }
}
void check_write(const Warp& w, const Instruction& i, int lane, std::uint64_t at) {
  if (i.space == Space::kShared || i.space == Space::kLocal) {
    return;
  }
  if (!has_waited(w, lane)) {
    w.fail(i, lane, "the kernels before were not waited for");
  }
  if (w.block().kernel().lets_next_begin) {
    unfinished_writes().add(at);
  }
}

template <class T>
void load(Warp& w, const Instruction& i) {
  const int count = i.count - 1;
  const Operand& from = i[count];
  const bool early = w.block().launch().early;
  for_each_lane(w, [&](int lane) {
    T values[4];
    const std::uint64_t at = w.address(from, lane);
    if (early) {
      check_read(w, i, lane, at);
    }
    std::memcpy(values, w.memory(i, i.space, at, sizeof(T) * static_cast<std::size_t>(count), lane),
                sizeof(T) * static_cast<std::size_t>(count));
    for (int k = 0; k < count; ++k) {
      put(w, i[k], lane, values[k]);
    }
  });
}
/// Of what others may change: who goes back to read it again lets them.
template <class T>
void load_changing(Warp& w, const Instruction& i) {
  load<T>(w, i);
  w.note_look();
}

template <class T>
void store(Warp& w, const Instruction& i) {
  const int count = i.count - 1;
  if (i.space == Space::kShared) {
    w.fall_apart(true);
  }
  for_each_lane(w, [&](int lane) {
    T values[4];
    for (int k = 0; k < count; ++k) {
      values[k] = get<T>(w, i[k + 1], lane);
    }
    const std::uint64_t at = w.address(i[0], lane);
    const std::size_t bytes = sizeof(T) * static_cast<std::size_t>(count);
    std::byte* const to = w.memory(i, i.space, at, bytes, lane);
    check_write(w, i, lane, at);
    std::memcpy(to, values, bytes);
    w.block().note_write(to, bytes, w.number());
  });
  w.block().machine().note_event();
  if (i.space == Space::kShared) {
    w.fall_apart(false);
  }
}

template <class T, auto kF>
void change(Warp& w, const Instruction& i) {
  for_each_lane(w, [&](int lane) {
    const std::uint64_t address = w.address(i[1], lane);
    auto* const at = w.memory(i, i.space, address, sizeof(T), lane);
    check_write(w, i, lane, address);
    T before;
    std::memcpy(&before, at, sizeof(T));
    const T after = kF(before, w.in<T>(i[2])[lane]);
    std::memcpy(at, &after, sizeof(T));
    w.out<T>(i[0])[lane] = before;
  });
  w.block().machine().note_event();
}

template <class T>
Instruction::Run access(const std::string& opcode) {
  const bool changes =
      opcode.find(".relaxed") != std::string::npos || opcode.find(".volatile") != std::string::npos;
  return opcode.starts_with("st") ? &store<T> : (changes ? &load_changing<T> : &load<T>);
}

Instruction::Run find_access(const std::string& opcode) {
  const std::string type = opcode.substr(opcode.rfind('.') + 1);
  if (type == "u8" || type == "b8") {
    return access<std::uint8_t>(opcode);
  }
  if (type == "s8") {
    return access<std::int8_t>(opcode);
  }
  if (type == "s16") {
    return access<std::int16_t>(opcode);
  }
  if (type == "u16" || type == "b16") {
    return access<std::uint16_t>(opcode);
  }
  if (type == "s32") {
    return access<std::int32_t>(opcode);
  }
  if (type == "u32" || type == "b32" || type == "f32") {
    return access<std::uint32_t>(opcode);
  }
  if (type == "u64" || type == "b64" || type == "s64" || type == "f64") {
    return access<std::uint64_t>(opcode);
  }
  return nullptr;
}

}  // namespace

void add_memory(Table& table) {
  for (const std::string space : {"atom.global.", "atom.shared."}) {
    table[space + "add.u32"] =
        &change<std::uint32_t, ([](std::uint32_t a, std::uint32_t b) { return a + b; })>;
    table[space + "min.s32"] =
        &change<std::int32_t, ([](std::int32_t a, std::int32_t b) { return std::min(a, b); })>;
    table[space + "or.b32"] =
        &change<std::uint32_t, ([](std::uint32_t a, std::uint32_t b) { return a | b; })>;
    table[space + "add.f32"] = &change<float, ([](float a, float b) { return a + b; })>;
    table[space + "add.f64"] = &change<double, ([](double a, double b) { return a + b; })>;
  }
}

Instruction::Run find_instruction(const std::string& opcode) {
  static const Table table = [] {
    Table made;
    add_arithmetic(made);
    add_memory(made);
    add_warp_wide(made);
    add_products(made);
    add_copies(made);
    return made;
  }();
  if (const auto found = table.find(opcode); found != table.end()) {
    return found->second;
  }
  return opcode.starts_with("ld.") || opcode.starts_with("st.") ? find_access(opcode) : nullptr;
}

}  // namespace carope::ptx
