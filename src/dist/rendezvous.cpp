#include "dist/rendezvous.h"

#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/version.h"

namespace carope {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLook(100);       // between looks at what has come, or tries to connect
constexpr milliseconds kStranger(5000);  // to say who one is
constexpr std::size_t kStrangers = 64;   // who may wait at once, beside the ranks

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

/// What a rank says first.
struct Hello {
  std::string version;
  int world_size = 0;
  int rank = 0;
  std::string host;
  std::string job;
  std::string device;
};

std::string to_line(const Hello& hello) {
  return fmt::format("carope {} {} {} {} {} {}", hello.version, hello.world_size, hello.rank,
                     hello.host, hello.job, hello.device);
}

std::string device_of(const Launch& launch) { return launch.on_gpu ? "GPU" : "CPU"; }

/// Empty where a stranger said it.
std::optional<Hello> hello_of(const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  const auto is_number = [](const std::string& word) {
    return word.size() < 9 &&
           std::all_of(word.begin(), word.end(), [](char c) { return '0' <= c && c <= '9'; });
  };
  if (words.size() != 7 || words[0] != "carope" || !is_number(words[2]) || !is_number(words[3])) {
    return std::nullopt;
  }
  return Hello{.version = words[1],
               .world_size = std::stoi(words[2]),
               .rank = std::stoi(words[3]),
               .host = words[4],
               .job = words[5],
               .device = words[6]};
}

/// Somebody who has connected and not yet said who it is.
struct Visitor {
  Connection connection;
  Clock::time_point since;
};

/// The door at which rank 0 stands.
class Door {
 public:
  Door(const Listener& listener, const Launch& launch) : listener_(listener), launch_(launch) {}

  std::vector<Peer> let_in(const std::string& gift, Clock::time_point deadline) {
    try {
      while (static_cast<int>(peers_.size()) + 1 < launch_.world_size) {
        check_deadline(deadline);
        wait();
        greet();
        hear_visitors();
        check_peers();
      }
    } catch (const ConfigError& error) {
      for (const auto& [rank, peer] : peers_) {
        peer.connection.send(fmt::format("refused {}", error.what()));
      }
      throw;
    }
    std::vector<Peer> all;
    for (auto& [rank, peer] : peers_) {
      peer.connection.send(fmt::format("welcome {} {}", host_name(), gift));
      all.push_back(std::move(peer));
    }
    return all;
  }

 private:
  void check_deadline(Clock::time_point deadline) const {
    if (Clock::now() < deadline) {
      return;
    }
    constexpr std::size_t kNamed = 16;
    std::vector<int> missing;
    for (int rank = 1; rank < launch_.world_size && missing.size() < kNamed; ++rank) {
      if (!peers_.contains(rank)) {
        missing.push_back(rank);
      }
    }
    throw ConfigError(fmt::format(
        "{} of {} ranks came to port {} of {} in time; missing: {}{}; see whether they run and "
        "whether they can reach this machine (MASTER_ADDR, firewalls)",
        peers_.size() + 1, launch_.world_size, listener_.port(), host_name(),
        fmt::join(missing, ", "), missing.size() == kNamed ? ", ..." : ""));
  }

  void wait() const {
    std::vector<pollfd> sockets{{.fd = listener_.socket(), .events = POLLIN, .revents = 0}};
    for (const Visitor& visitor : visitors_) {
      sockets.push_back({.fd = visitor.connection.socket(), .events = POLLIN, .revents = 0});
    }
    poll(sockets.data(), sockets.size(), static_cast<int>(kLook.count()));
  }

  void greet() {
    const std::size_t most = kStrangers + static_cast<std::size_t>(launch_.world_size);
    while (std::optional<Connection> connection = listener_.accept()) {
      if (visitors_.size() == most) {
        visitors_.erase(visitors_.begin());  // who has been silent for longest
      }
      visitors_.push_back({std::move(*connection), Clock::now()});
    }
  }

  void hear_visitors() {
    std::vector<Visitor> waiting;
    for (Visitor& visitor : visitors_) {
      const bool open = visitor.connection.receive();
      if (const std::optional<std::string> line = visitor.connection.line()) {
        if (const std::optional<Hello> hello = hello_of(*line)) {
          admit(*hello, std::move(visitor.connection));
        }
      } else if (open && Clock::now() - visitor.since < kStranger) {
        waiting.push_back(std::move(visitor));
      }
    }
    visitors_ = std::move(waiting);
  }

  void admit(const Hello& hello, Connection connection) {
    if (hello.job != launch_.job) {
      connection.send(fmt::format("elsewhere this is job {}", launch_.job));
      return;
    }
    const std::string problem = problem_with(hello);
    if (!problem.empty()) {
      connection.send(fmt::format("refused {}", problem));
      throw ConfigError(problem);
    }
    peers_.emplace(hello.rank, Peer{hello.rank, hello.host, std::move(connection)});
  }

  std::string problem_with(const Hello& hello) const {
    const std::string who = fmt::format("rank {} on {}", hello.rank, hello.host);
    if (hello.version != version()) {
      return fmt::format(
          "{} runs version {} of carope, but rank 0 on {} version {}; run the same everywhere", who,
          hello.version, host_name(), version());
    }
    if (hello.world_size != launch_.world_size || hello.rank < 1 ||
        hello.rank >= launch_.world_size) {
      return fmt::format(
          "{} was told of {} ranks, but rank 0 on {} of {}; start all with the same WORLD_SIZE",
          who, hello.world_size, host_name(), launch_.world_size);
    }
    if (hello.device != device_of(launch_)) {
      return fmt::format(
          "{} computes on its {}, but rank 0 on {} on its {}; give all ranks --device cuda, and "
          "see "
          "why one finds no GPU, or give all --device cpu",
          who, hello.device, host_name(), device_of(launch_));
    }
    if (const auto twin = peers_.find(hello.rank); twin != peers_.end()) {
      return fmt::format(
          "two processes say that they are rank {}, on {} and on {}; give every process a RANK of "
          "its own",
          hello.rank, twin->second.host, hello.host);
    }
    return {};
  }

  void check_peers() {
    for (auto& [rank, peer] : peers_) {
      check<ConfigError>(peer.connection.receive(),
                         "rank {} on {} left before all ranks were there; see what it said", rank,
                         peer.host);
    }
  }

  const Listener& listener_;
  const Launch& launch_;
  std::vector<Visitor> visitors_;
  std::map<int, Peer> peers_;
};

/// The next line that comes before the deadline, waiting for it.
std::optional<std::string> wait_for_line(Connection& connection, Clock::time_point deadline) {
  for (bool open = true;;) {
    if (std::optional<std::string> line = connection.line()) {
      return line;
    }
    if (!open || Clock::now() >= deadline) {
      return std::nullopt;
    }
    pollfd waiting{.fd = connection.socket(), .events = POLLIN, .revents = 0};
    poll(&waiting, 1, static_cast<int>(kLook.count()));
    open = connection.receive();
  }
}

}  // namespace

std::vector<Peer> let_ranks_in(const Listener& listener, const Launch& launch,
                               const std::string& gift, milliseconds patience) {
  return Door(listener, launch).let_in(gift, Clock::now() + patience);
}

FirstRank join_first_rank(const std::vector<std::string>& addresses, int port, const Launch& launch,
                          milliseconds patience) {
  constexpr milliseconds kConnecting(2000);
  const Clock::time_point deadline = Clock::now() + patience;
  const Hello hello{.version = std::string(version()),
                    .world_size = launch.world_size,
                    .rank = launch.rank,
                    .host = host_name(),
                    .job = launch.job,
                    .device = device_of(launch)};
  std::string problem = "no address was given";
  while (Clock::now() < deadline) {
    for (const std::string& address : addresses) {
      Connected connected = connect_to(address, port, std::min(kConnecting, patience));
      problem = connected.problem;
      if (!connected.connection) {
        continue;
      }
      connected.connection->send(to_line(hello));
      const std::string answer = wait_for_line(*connected.connection, deadline).value_or("");
      const std::vector<std::string> words = words_of(answer);
      if (words.size() == 3 && words[0] == "welcome") {
        return {.peer = {0, words[1], std::move(*connected.connection)}, .gift = words[2]};
      }
      check<ConfigError>(words.empty() || words[0] != "refused", "rank 0 let this rank not in: {}",
                         answer.substr(answer.find(' ') + 1));
      problem = words.empty()             ? "whoever listens there does not answer as rank 0"
                : words[0] == "elsewhere" ? answer.substr(answer.find(' ') + 1)
                                          : "whoever listens there is no rank of carope";
    }
    std::this_thread::sleep_for(kLook);
  }
  throw ConfigError(fmt::format(
      "rank 0 could not be met at {} port {}: {}; see whether it runs, and whether MASTER_ADDR and "
      "MASTER_PORT are right and can be reached from {}",
      fmt::join(addresses, " or "), port, problem, host_name()));
}

}  // namespace carope
