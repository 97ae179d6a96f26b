#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/rendezvous.h"

namespace carope {

/// Ends this process, and thereby the job, when another rank is lost: a collective operation that
/// it was to take part in would never end. Every rank tells rank 0 once a second that it lives, and
/// rank 0 every rank, over connections of their own, by a thread of its own. Whose connection
/// closes, or who is silent for longer than the timeout, is lost, and rank 0 tells all.
class Watch {
 public:
  /// `peers` are all other ranks for rank 0, and rank 0 for the others. `ailing` is asked at every
  /// beat; an answer other than "" ends this rank with it.
  Watch(int rank, std::vector<Peer> peers, std::chrono::milliseconds timeout,
        std::function<std::string()> ailing = {});
  /// Takes leave: others will not miss this rank. Not so where an exception leads here: then the
  /// watch goes on to the end of the process, by when it has said what happened, and others notice.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
  const int exceptions_;
  std::thread thread_;
};

/// Meets the other ranks where the launch says, and watches them from then on. `gift`, a word
/// without spaces, becomes what rank 0 has there.
std::unique_ptr<Watch> meet_and_watch(const Launch& launch, std::string& gift,
                                      std::chrono::seconds timeout,
                                      std::function<std::string()> ailing = {});

/// How long ranks wait for the last to come: the timeout, or where that is very short, as long as
/// processes take to start.
std::chrono::milliseconds patience_for(std::chrono::seconds timeout);

/// Ends this process and says why, whatever its other threads wait for or hold.
[[noreturn]] void end_at_once(int rank, const std::string& why);

}  // namespace carope
