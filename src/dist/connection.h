#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carope {

/// One end of a TCP connection over which lines of text go. Nothing here waits.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}
  ~Connection();
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;

  int socket() const { return socket_; }
  /// Sends a line, unless the other side has gone or has long stopped reading.
  void send(std::string_view line) const;
  /// Says that no more will be sent.
  void end_sending() const;
  /// Takes in what has come; false where no more will come, or what came is no line.
  bool receive();
  /// The next line that has come as a whole.
  std::optional<std::string> line();

 private:
  int socket_;
  std::string received_;
};

/// A port of this machine, any free one for 0, where others can connect. A port that cannot be had
/// is a ConfigError.
class Listener {
 public:
  explicit Listener(int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  int socket() const { return socket_; }
  /// Somebody who waits to be let in.
  std::optional<Connection> accept() const;

 private:
  int socket_ = -1;
  int port_ = 0;
};

/// What came of connecting: a connection, or why there is none.
struct Connected {
  std::optional<Connection> connection;
  std::string problem;
};
/// Waits for at most so long.
Connected connect_to(const std::string& address, int port, std::chrono::milliseconds patience);

/// This machine's addresses that others could reach, at most `most` of them.
std::vector<std::string> own_addresses(std::size_t most);

}  // namespace carope
