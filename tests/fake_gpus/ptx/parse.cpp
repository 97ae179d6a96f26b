#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "machine.h"

namespace carope::ptx {
namespace {

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\n\r");
  return begin == std::string_view::npos
             ? std::string_view{}
             : text.substr(begin, text.find_last_not_of(" \t\n\r") + 1 - begin);
}

/// The first word, which is taken off.
std::string_view take_word(std::string_view& text) {
  text = trim(text);
  const auto end = std::min(text.find_first_of(" \t\n\r"), text.size());
  const std::string_view word = text.substr(0, end);
  text = trim(text.substr(end));
  return word;
}

/// Cut at commas outside brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    depth += c == '{' || c == '[' ? 1 : (c == '}' || c == ']' ? -1 : 0);
    if (c == ',' && (depth == 0 || i == text.size())) {
      if (const auto part = trim(text.substr(begin, i - begin)); !part.empty()) {
        parts.push_back(part);
      }
      begin = i + 1;
    }
  }
  return parts;
}

int bytes_of_type(std::string_view type) {
  if (type == "pred") {
    return 0;
  }
  const auto digits = type.find_first_of("0123456789");
  if (digits == std::string_view::npos || digits != 1) {
    return -1;
  }
  int bits = 0;
  std::from_chars(type.data() + digits, type.data() + type.size(), bits);
  constexpr int kBitsOfByte = 8;
  return bits / kBitsOfByte;
}

std::int64_t to_number(std::string_view text) {
  const bool negative = text.starts_with('-');
  text.remove_prefix(negative ? 1 : 0);
  int base = 10;
  if (text.starts_with("0x")) {
    text.remove_prefix(2);
    base = 16;
  }
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return static_cast<std::int64_t>(negative ? 0 - value : value);
}

std::string without_comments(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size() - 1);
    const std::string_view line = text.substr(0, end + 1);
    clean += line.substr(0, line.find("//"));
    clean += '\n';
    text.remove_prefix(end + 1);
  }
  return clean;
}

/// Where a kernel's text begins: at its name.
std::size_t find_entry(std::string_view module, const std::string& name) {
  const std::string wanted = ".entry " + name + "(";
  return module.find(wanted);
}

class Parser {
 public:
  Parser(std::string_view module, const std::string& name) {
    kernel_.name = name;
    const std::size_t entry = find_entry(module, name);
    declare_outside(module);
    const std::size_t parameters = module.find('(', entry);
    const std::size_t body = module.find("\n{", parameters);
    std::size_t end = body + 1;
    for (int depth = 0; end < module.size(); ++end) {
      depth += module[end] == '{' ? 1 : (module[end] == '}' ? -1 : 0);
      if (depth == 0) {
        break;
      }
    }
    const std::size_t after = module.rfind(')', body);
    read_parameters(module.substr(parameters + 1, after - parameters - 1));
    read_limits(module.substr(after + 1, body - after - 1));
    scopes_.emplace_back();
    const std::string text = without_comments(module.substr(body + 2, end - body - 2));
    read_body(text);
    for (const auto& [index, label] : jumps_) {
      kernel_.code[index].target = labels_.at(label);
    }
    layout_shared();
    kernel_.register_bytes = registers_;
  }

  Kernel take() { return std::move(kernel_); }

 private:
  struct Register {
    std::size_t at;
    int bytes;
  };

  /// Shared memory that is declared outside the kernel is the kernel's if it names it.
  void declare_outside(std::string_view module) {
    std::size_t at = 0;
    while ((at = module.find(".shared ", at)) != std::string_view::npos) {
      const bool outside =
          at == 0 || module[at - 1] == '\n' ||
          module.substr(at - std::min<std::size_t>(at, 8), 8).starts_with(".extern ");
      const std::size_t end = module.find(';', at);
      if (outside) {
        declare(module.substr(at, end - at), true);
      }
      at = end;
    }
  }

  struct Variable {
    std::size_t alignment = 1, bytes = 0;
    bool dynamic = false, used = false;
    std::size_t at = 0;
    std::vector<std::pair<std::uint64_t*, int>> uses;  // constants that hold its address
  };

  /// ".shared .align 4 .b8 name[64]" and the like.
  void declare(std::string_view text, bool outside) {
    const std::string_view space = take_word(text);
    Variable variable;
    std::string_view name;
    int bytes = 1;
    while (!text.empty()) {
      const std::string_view word = take_word(text);
      if (word == ".align") {
        variable.alignment = static_cast<std::size_t>(to_number(take_word(text)));
      } else if (word.starts_with('.')) {
        bytes = bytes_of_type(word.substr(1));
      } else {
        name = word;
      }
    }
    const auto bracket = name.find('[');
    variable.bytes = static_cast<std::size_t>(bytes);
    if (bracket != std::string_view::npos) {
      variable.dynamic = name.substr(bracket) == "[]";
      variable.bytes *= static_cast<std::size_t>(to_number(name.substr(bracket + 1)));
    }
    const std::string key(name.substr(0, bracket));
    if (space == ".shared") {
      variable.used = !outside;
      shared_[key] = variable;
    } else if (space == ".local") {
      locals_[key] = kernel_.local_bytes;
      constexpr std::size_t kAlignment = 16;
      kernel_.local_bytes += (variable.bytes + kAlignment - 1) / kAlignment * kAlignment;
    } else {
      throw Fault("a declaration that is not known: " + key);
    }
  }

  /// Addresses can be given once it is known what the kernel uses.
  void layout_shared() {
    std::size_t end = 0;
    const auto place = [&](Variable& variable) {
      end = (end + variable.alignment - 1) / variable.alignment * variable.alignment;
      variable.at = end;
      end += variable.dynamic ? 0 : variable.bytes;
    };
    for (auto& [name, variable] : shared_) {
      if (variable.used && !variable.dynamic) {
        place(variable);
      }
    }
    constexpr std::size_t kAlignment = 16;
    end = (end + kAlignment - 1) / kAlignment * kAlignment;
    kernel_.dynamic_shared = end;
    for (auto& [name, variable] : shared_) {
      if (variable.used && variable.dynamic) {
        end = kernel_.dynamic_shared;
        place(variable);
        kernel_.dynamic_shared = variable.at;
      }
    }
    for (auto& [name, variable] : shared_) {
      for (const auto& [constant, bytes] : variable.uses) {
        fill(constant, kSharedBegin + variable.at, bytes);
      }
    }
  }

  void read_parameters(std::string_view text) {
    for (std::string_view part : split(text)) {
      std::size_t alignment = 0;
      int bytes = 1;
      std::string_view name;
      while (!part.empty()) {
        const std::string_view word = take_word(part);
        if (word == ".align") {
          alignment = static_cast<std::size_t>(to_number(take_word(part)));
        } else if (word == ".param" || word == ".ptr") {
          continue;
        } else if (word.starts_with('.') && bytes_of_type(word.substr(1)) > 0) {
          bytes = bytes_of_type(word.substr(1));
        } else if (!word.starts_with('.')) {
          name = word;
        }
      }
      const auto bracket = name.find('[');
      auto size = static_cast<std::size_t>(bytes);
      alignment = std::max(alignment, size);
      if (bracket != std::string_view::npos) {
        size *= static_cast<std::size_t>(to_number(name.substr(bracket + 1)));
      }
      std::size_t& end = kernel_.parameter_bytes;
      end = (end + alignment - 1) / alignment * alignment;
      kernel_.parameters.push_back({end, size});
      parameters_[std::string(name.substr(0, bracket))] = end;
      end += size;
    }
  }

  /// What __launch_bounds__ says.
  void read_limits(std::string_view text) {
    constexpr std::string_view kThreads = ".maxntid ";
    if (const auto at = text.find(kThreads); at != std::string_view::npos) {
      kernel_.most_threads = 1;
      const std::string_view sizes = text.substr(at + kThreads.size());
      for (const std::string_view size : split(sizes.substr(0, sizes.find('\n')))) {
        kernel_.most_threads *= static_cast<std::size_t>(to_number(size));
      }
    }
  }

  void read_body(std::string_view text) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      const std::string_view so_far = trim(text.substr(begin, i - begin));
      if (c == ';') {
        read_statement(so_far);
        begin = i + 1;
      } else if (c == ':' && so_far.starts_with('$') &&
                 (i + 1 == text.size() || text[i + 1] != ':')) {
        labels_[std::string(so_far)] = static_cast<int>(kernel_.code.size());
        begin = i + 1;
      } else if (c == '{' && so_far.empty()) {
        scopes_.emplace_back();
        begin = i + 1;
      } else if (c == '}' && so_far.empty()) {
        scopes_.pop_back();
        begin = i + 1;
      }
    }
  }

  void read_statement(std::string_view text) {
    if (text.empty() || text.starts_with(".pragma")) {
      return;
    }
    if (text.starts_with(".reg")) {
      return declare_registers(text);
    }
    if (text.starts_with('.')) {
      return declare(text, false);
    }
    Instruction i;
    i.text = text;
    if (text.starts_with('@')) {
      std::string_view guard = take_word(text).substr(1);
      i.unless = guard.starts_with('!');
      guard.remove_prefix(i.unless ? 1 : 0);
      kernel_.operands.push_back({find_register(guard)});
      i.guard = kernel_.operands.back().data();
    }
    const std::string opcode(take_word(text));
    if (opcode == "bra" || opcode == "bra.uni") {
      jumps_.emplace_back(kernel_.code.size(), std::string(text));
      kernel_.code.push_back(std::move(i));
      return;
    }
    special_ = -1;
    read_operands(i, opcode, text);
    i.special = special_;
    i.run = find_instruction(special_ >= 0 ? "mov.special" : opcode);
    kernel_.lets_next_begin =
        kernel_.lets_next_begin || opcode == "griddepcontrol.launch_dependents";
    kernel_.multiplies_shared = kernel_.multiplies_shared || opcode.starts_with("wgmma.");
    if (i.run == nullptr) {
      throw Fault(fmt::format("{}: no machine does '{}'", kernel_.name, i.text));
    }
    kernel_.code.push_back(std::move(i));
  }

  void declare_registers(std::string_view text) {
    take_word(text);
    const int bytes = bytes_of_type(take_word(text).substr(1));
    for (const std::string_view part : split(text)) {
      const auto bracket = part.find('<');
      if (bracket == std::string_view::npos) {
        scopes_.back()[std::string(part)] = add_register(bytes);
        continue;
      }
      const std::int64_t count = to_number(part.substr(bracket + 1));
      for (std::int64_t n = 0; n < count; ++n) {
        scopes_.back()[fmt::format("{}{}", part.substr(0, bracket), n)] = add_register(bytes);
      }
    }
  }

  Register add_register(int bytes) {
    constexpr std::size_t kAlignment = 64;
    const std::size_t size = bytes == 0 ? sizeof(Mask) : static_cast<std::size_t>(bytes) * kLanes;
    if (bytes != 0) {
      registers_ = (registers_ + kAlignment - 1) / kAlignment * kAlignment;
    }
    const Register made{registers_, bytes};
    registers_ += size;
    return made;
  }

  Operand find_register(std::string_view name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(std::string(name)); found != scope->end()) {
        return {static_cast<std::intptr_t>(found->second.at), found->second.bytes};
      }
    }
    throw Fault(fmt::format("{}: no register {}", kernel_.name, name));
  }

  static void fill(std::uint64_t* to, std::uint64_t value, int bytes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      std::memcpy(reinterpret_cast<std::byte*>(to) + lane * bytes, &value,
                  static_cast<std::size_t>(bytes));
    }
  }

  Operand constant(std::uint64_t value, int bytes) {
    kernel_.constants.emplace_back(kLanes);
    std::uint64_t* const memory = kernel_.constants.back().data();
    if (bytes == 0) {  // a predicate
      *memory = value != 0 ? ~std::uint64_t{0} : 0;
    } else {
      fill(memory, value, bytes);
    }
    return {reinterpret_cast<std::intptr_t>(memory), bytes, true};
  }

  /// One that is no brackets. `bytes` are of a constant.
  Operand read_operand(std::string_view text, int bytes) {
    if (text == "_") {
      return {static_cast<std::intptr_t>(add_register(bytes).at), bytes};
    }
    constexpr int kWord = 4;
    constexpr int kLong = 8;
    constexpr int kHex = 16;
    if (text.starts_with("0f") || text.starts_with("0d")) {
      std::uint64_t bits = 0;
      std::from_chars(text.data() + 2, text.data() + text.size(), bits, kHex);
      return constant(bits, text[1] == 'f' ? kWord : kLong);
    }
    if (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-') {
      return constant(static_cast<std::uint64_t>(to_number(text)), bytes);
    }
    if (const auto special = std::find(kSpecial.begin(), kSpecial.end(), text);
        special != kSpecial.end()) {
      special_ = static_cast<int>(special - kSpecial.begin());
      return {};
    }
    if (const auto parameter = parameters_.find(std::string(text));
        parameter != parameters_.end()) {
      return constant(kParameterWindow + parameter->second, kLong);
    }
    if (const auto local = locals_.find(std::string(text)); local != locals_.end()) {
      return constant(local->second, kLong);
    }
    if (const auto found = shared_.find(std::string(text)); found != shared_.end()) {
      found->second.used = true;
      const Operand made = constant(0, bytes > 0 ? bytes : kWord);
      found->second.uses.emplace_back(reinterpret_cast<std::uint64_t*>(made.at), made.bytes);
      return made;
    }
    return find_register(text);
  }

  void read_operands(Instruction& i, const std::string& opcode, std::string_view text) {
    constexpr int kWord = 4;
    constexpr int kLong = 8;
    // What a number among the operands is taken for.
    int bytes = kWord;
    const std::string_view type = std::string_view(opcode).substr(opcode.rfind('.') + 1);
    if (bytes_of_type(type) > 0 && !opcode.starts_with("mbarrier") &&
        !opcode.starts_with("wgmma")) {
      bytes = bytes_of_type(type);
    }
    const bool shifts = opcode.starts_with("shl") || opcode.starts_with("shr");
    for (const auto& [name, space] : {std::pair(".global", Space::kGlobal),
                                      {".shared", Space::kShared},
                                      {".local", Space::kLocal}}) {
      if (opcode.starts_with("ld") || opcode.starts_with("st") || opcode.starts_with("atom")) {
        if (opcode.find(name) != std::string::npos) {
          i.space = space;
        }
      }
    }
    std::vector<Operand> operands;
    for (std::string_view part : split(text)) {
      if (part.starts_with('[')) {
        for (std::string_view piece : split(part.substr(1, part.size() - 2))) {
          if (piece.starts_with('{')) {
            for (const std::string_view each : split(piece.substr(1, piece.size() - 2))) {
              operands.push_back(read_operand(each, kWord));
            }
            continue;
          }
          const auto plus = piece.find('+');
          operands.push_back(read_operand(trim(piece.substr(0, plus)), kLong));
          if (plus != std::string_view::npos) {
            operands.back().offset = to_number(trim(piece.substr(plus + 1)));
          }
        }
      } else if (part.starts_with('{')) {
        for (const std::string_view each : split(part.substr(1, part.size() - 2))) {
          operands.push_back(read_operand(each, bytes));
        }
      } else if (const auto bar = part.find('|'); bar != std::string_view::npos) {
        operands.push_back(read_operand(trim(part.substr(0, bar)), bytes));
        operands.push_back(read_operand(trim(part.substr(bar + 1)), 0));
      } else {
        operands.push_back(read_operand(part, shifts && operands.size() == 2 ? kWord : bytes));
      }
    }
    i.count = static_cast<int>(operands.size());
    kernel_.operands.push_back(std::move(operands));
    i.operands = kernel_.operands.back().data();
  }

  Kernel kernel_;
  int special_ = -1;  // the number of what is read instead of a register
  std::size_t registers_ = 0;
  std::vector<std::map<std::string, Register>> scopes_;
  std::map<std::string, std::size_t> parameters_, locals_;
  std::map<std::string, Variable> shared_;
  std::map<std::string, int> labels_;
  std::vector<std::pair<std::size_t, std::string>> jumps_;
};

}  // namespace

bool has_kernel(std::string_view module, const std::string& name) {
  return find_entry(module, name) != std::string_view::npos;
}

Kernel parse_kernel(std::string_view module, const std::string& name) {
  return Parser(module, name).take();
}

}  // namespace carope::ptx
