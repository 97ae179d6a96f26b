#include "dist/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "core/error.h"

namespace carope {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLongestBeat(1000);
constexpr milliseconds kLeaveTaking(500);

/// Says why this process ends. Other threads may hold any lock and never give it back.
void say_last(int rank, const std::string& why) {
  const std::string text = fmt::format("carope: rank {} on {}: {}\n", rank, host_name(), why);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  if (ftrylockfile(stdout) == 0) {
    std::fflush(stdout);
    funlockfile(stdout);
  }
}

}  // namespace

struct Watch::State {
  struct Watched {
    Peer peer;
    Clock::duration silent{};
    bool speaks = false;
    bool left = false;
  };

  State(int own_rank, std::vector<Peer> peers, milliseconds silence_allowed,
        std::function<std::string()> health)
      : rank(own_rank),
        timeout(silence_allowed),
        beat(std::min(kLongestBeat, silence_allowed / 4)),
        ailing(std::move(health)),
        stop(eventfd(0, EFD_CLOEXEC)) {
    for (Peer& peer : peers) {
      watched.push_back({.peer = std::move(peer)});
    }
  }
  ~State() { close(stop); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// True when the owner asks to stop.
  bool wait_until(Clock::time_point time) {
    std::vector<pollfd> sockets{{.fd = stop, .events = POLLIN, .revents = 0}};
    for (const Watched& each : watched) {
      // poll skips what is below zero.
      const int socket = each.left ? -1 : each.peer.connection.socket();
      sockets.push_back({.fd = socket, .events = POLLIN, .revents = 0});
    }
    const auto left = std::chrono::ceil<milliseconds>(time - Clock::now());
    poll(sockets.data(), sockets.size(), static_cast<int>(std::max(left.count(), 0L)));
    for (std::size_t i = 0; i < watched.size(); ++i) {
      watched[i].speaks = sockets[i + 1].revents != 0;
    }
    return sockets[0].revents != 0;
  }

  void send(const std::string& line) const {
    for (const Watched& each : watched) {
      if (!each.left) {
        each.peer.connection.send(line);
      }
    }
  }

  /// The last line. What has come and was not read would make the system drop it on its way.
  void leave(const std::string& line) {
    send(line);
    for (const Watched& each : watched) {
      each.peer.connection.end_sending();
    }
    const Clock::time_point end = Clock::now() + kLeaveTaking;
    for (bool open = true; open && Clock::now() < end;) {
      open = false;
      for (Watched& each : watched) {
        each.left = each.left || !each.peer.connection.receive();
        while (each.peer.connection.line()) {
        }
        open = open || !each.left;
      }
      if (open) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  }

  /// Why the job must end; empty as long as it need not.
  std::string listen_to(Watched& each, Clock::duration elapsed) const {
    constexpr std::string_view kLost = "lost ";
    constexpr const char* kAdvice =
        "what it said last may tell why. The job ends; start it again with --resume to go on from "
        "its last checkpoint";
    each.silent += elapsed;
    if (!each.speaks && each.silent <= timeout) {
      return {};
    }
    const std::string who = fmt::format("rank {} on {}", each.peer.rank, each.peer.host);
    const bool open = each.peer.connection.receive();
    while (const std::optional<std::string> line = each.peer.connection.line()) {
      each.silent = {};
      each.left = each.left || *line == "bye";
      if (line->starts_with(kLost)) {
        const std::string why = line->substr(kLost.size());
        return each.peer.rank == 0 ? why : fmt::format("{}: {}", who, why);
      }
    }
    if (!open && !each.left) {
      return fmt::format("{} ended early; {}", who, kAdvice);
    }
    if (each.silent > timeout && !each.left) {
      return fmt::format("{} has been silent for {} s; {}", who,
                         std::chrono::duration<double>(timeout).count(), kAdvice);
    }
    return {};
  }

  void run() {
    Clock::time_point last = Clock::now();
    Clock::time_point next_beat = last;
    while (!wait_until(next_beat)) {
      const Clock::time_point now = Clock::now();
      // A process that was itself stopped has not listened: that is nobody's silence.
      const Clock::duration elapsed = std::min<Clock::duration>(now - last, 2 * beat);
      last = now;
      for (Watched& each : watched) {
        if (const std::string why = each.left ? "" : listen_to(each, elapsed); !why.empty()) {
          end_job(why);
        }
      }
      if (now >= next_beat) {
        send("beat");
        next_beat = now + beat;
        const std::string ailment = ailing ? ailing() : "";
        if (!ailment.empty()) {
          end_job(ailment);
        }
      }
    }
    leave("bye");
  }

  /// Does not wait for operations that can never end.
  [[noreturn]] void end_job(const std::string& why) {
    say_last(rank, why);
    leave("lost " + why);
    _exit(EXIT_FAILURE);
  }

  const int rank;
  const milliseconds timeout;
  const milliseconds beat;
  const std::function<std::string()> ailing;
  const int stop;
  std::vector<Watched> watched;
};

Watch::Watch(int rank, std::vector<Peer> peers, milliseconds timeout,
             std::function<std::string()> ailing)
    : state_(std::make_shared<State>(rank, std::move(peers), timeout, std::move(ailing))),
      exceptions_(std::uncaught_exceptions()),
      thread_([state = state_] { state->run(); }) {}

Watch::~Watch() {
  if (std::uncaught_exceptions() > exceptions_) {
    thread_.detach();
    return;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(state_->stop, &one, sizeof(one));
  thread_.join();
}

milliseconds patience_for(std::chrono::seconds timeout) {
  constexpr std::chrono::seconds kStart(5);
  return std::max(timeout, kStart);
}

void end_at_once(int rank, const std::string& why) {
  say_last(rank, why);
  _exit(EXIT_FAILURE);
}

std::unique_ptr<Watch> meet_and_watch(const Launch& launch, std::string& gift,
                                      std::chrono::seconds timeout,
                                      std::function<std::string()> ailing) {
  check<ConfigError>(!launch.address.empty() && launch.port != 0,
                     "{} ranks were launched, but MASTER_ADDR and MASTER_PORT, where they meet, "
                     "are not set; set them to rank 0's host and a free port there",
                     launch.world_size);
  std::vector<Peer> peers;
  if (launch.rank == 0) {
    const Listener listener(launch.port);
    peers = let_ranks_in(listener, launch, gift, patience_for(timeout));
  } else {
    FirstRank first = join_first_rank({launch.address}, launch.port, launch, patience_for(timeout));
    gift = first.gift;
    peers.push_back(std::move(first.peer));
  }
  return std::make_unique<Watch>(launch.rank, std::move(peers), timeout, std::move(ailing));
}

}  // namespace carope
