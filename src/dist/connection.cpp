#include "dist/connection.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/error.h"

namespace carope {
namespace {

constexpr std::size_t kLongestLine = 2048;

/// A socket with this address; -1, and errno, where there is none.
int bind_socket(const sockaddr* address, socklen_t size) {
  const int on = 1;
  const int off = 0;
  const int socket = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (address->sa_family == AF_INET6) {
    setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  // A job that starts again must not wait until its last connections are forgotten.
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (socket < 0 || bind(socket, address, size) == 0) {
    return socket;
  }
  const int problem = errno;
  close(socket);
  errno = problem;
  return -1;
}

/// Binds a socket for both kinds of addresses, or where this machine knows only one, for that.
int bind_any(int port) {
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  both.sin6_addr = in6addr_any;
  both.sin6_port = htons(static_cast<std::uint16_t>(port));
  const int socket = bind_socket(reinterpret_cast<sockaddr*>(&both), sizeof(both));
  if (socket >= 0 || (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT)) {
    return socket;
  }
  sockaddr_in old{};
  old.sin_family = AF_INET;
  old.sin_port = both.sin6_port;
  return bind_socket(reinterpret_cast<sockaddr*>(&old), sizeof(old));
}

/// Lines are short and urgent.
void send_at_once(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

Connection::~Connection() {
  if (socket_ >= 0) {
    close(socket_);
  }
}

Connection::Connection(Connection&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), received_(std::move(other.received_)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(received_, other.received_);
  return *this;
}

void Connection::send(std::string_view line) const {
  const std::string text = std::string(line.substr(0, kLongestLine - 1)) + "\n";
  // Where this does not fit into the system's buffer, the other side reads no more: its silence
  // will be noticed.
  [[maybe_unused]] const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
}

void Connection::end_sending() const { shutdown(socket_, SHUT_WR); }

bool Connection::receive() {
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t count = recv(socket_, buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return true;
    }
    if (count <= 0) {
      return false;
    }
    received_.append(buffer.data(), static_cast<std::size_t>(count));
    const std::size_t last = received_.rfind('\n');
    const std::size_t begun = last == std::string::npos ? 0 : last + 1;
    if (received_.size() - begun > kLongestLine) {
      return false;
    }
  }
}

std::optional<std::string> Connection::line() {
  const std::size_t end = received_.find('\n');
  if (end == std::string::npos) {
    return std::nullopt;
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

Listener::Listener(int port) : socket_(bind_any(port)) {
  constexpr int kWaiting = 1024;
  check<ConfigError>(socket_ >= 0 && listen(socket_, kWaiting) == 0,
                     "rank 0 cannot listen at port {} for the other ranks: {}; is another job "
                     "running there? Set MASTER_PORT to a free port, the same for all ranks",
                     port, std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &size);
  // Both kinds of addresses have the port in the same place.
  port_ = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

Listener::~Listener() { close(socket_); }

std::optional<Connection> Listener::accept() const {
  const int socket = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) {
    return std::nullopt;
  }
  send_at_once(socket);
  return Connection(socket);
}

Connected connect_to(const std::string& address, int port, std::chrono::milliseconds patience) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (status != 0) {
    return {
        .connection = {},
        .problem = fmt::format("the name '{}' cannot be resolved: {}", address,
                               status == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(status))};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  int problem = 0;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    const int socket = ::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) {
      problem = errno;
      continue;
    }
    Connection connection(socket);
    problem = connect(socket, each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (problem == EINPROGRESS) {
      pollfd waiting{.fd = socket, .events = POLLOUT, .revents = 0};
      socklen_t size = sizeof(problem);
      problem = ETIMEDOUT;
      if (poll(&waiting, 1, static_cast<int>(patience.count())) > 0) {
        getsockopt(socket, SOL_SOCKET, SO_ERROR, &problem, &size);
      }
    }
    if (problem == 0) {
      send_at_once(socket);
      return {.connection = std::move(connection), .problem = {}};
    }
  }
  return {.connection = {}, .problem = std::strerror(problem)};
}

std::vector<std::string> own_addresses(std::size_t most) {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return addresses;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr && addresses.size() < most;
       each = each->ifa_next) {
    const bool usable = each->ifa_addr != nullptr && (each->ifa_flags & IFF_UP) != 0 &&
                        (each->ifa_flags & IFF_LOOPBACK) == 0;
    const int family = usable ? each->ifa_addr->sa_family : AF_UNSPEC;
    const socklen_t size = family == AF_INET    ? sizeof(sockaddr_in)
                           : family == AF_INET6 ? sizeof(sockaddr_in6)
                                                : 0;
    std::array<char, NI_MAXHOST> text{};
    if (size != 0 && getnameinfo(each->ifa_addr, size, text.data(), text.size(), nullptr, 0,
                                 NI_NUMERICHOST) == 0) {
      // An address with a zone is good on its own machine alone.
      if (std::strchr(text.data(), '%') == nullptr) {
        addresses.emplace_back(text.data());
      }
    }
  }
  return addresses;
}

}  // namespace carope
