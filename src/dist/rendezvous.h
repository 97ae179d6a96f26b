#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "dist/connection.h"
#include "dist/launch.h"

// How the ranks of a job find each other: all connect to rank 0.
namespace carope {

/// Another rank.
struct Peer {
  int rank;
  std::string host;
  Connection connection;
};

/// For rank 0: lets all other ranks in, in the order of their numbers, and hands each `gift`, a
/// word without spaces. Strangers are left standing. Ranks that do not come in time, come twice, or
/// are of another version or another number of ranks are a ConfigError that names them.
std::vector<Peer> let_ranks_in(const Listener& listener, const Launch& launch,
                               const std::string& gift, std::chrono::milliseconds patience);

/// Rank 0, as another rank meets it.
struct FirstRank {
  Peer peer;
  std::string gift;
};
/// For the other ranks: joins rank 0 at one of the addresses. Not being let in is a ConfigError.
FirstRank join_first_rank(const std::vector<std::string>& addresses, int port, const Launch& launch,
                          std::chrono::milliseconds patience);

}  // namespace carope
