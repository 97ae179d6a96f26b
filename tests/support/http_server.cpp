#include "support/http_server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace carope::test {
namespace {

constexpr int kPatience = 20;  // milliseconds between looks at whether to stop

/// False where the client has gone.
bool send_all(int connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::string read_request(int connection) {
  std::string request;
  std::array<char, 4096> buffer{};
  while (request.find("\r\n\r\n") == std::string::npos) {
    const ssize_t count = recv(connection, buffer.data(), buffer.size(), 0);
    if (count <= 0) {
      return {};
    }
    request.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return request;
}

std::string header(const std::string& request, const std::string& name) {
  const std::string start = "\r\n" + name + ": ";
  const std::size_t begin = request.find(start);
  if (begin == std::string::npos) {
    return {};
  }
  return request.substr(begin + start.size(),
                        request.find("\r\n", begin + 2) - begin - start.size());
}

}  // namespace

HttpServer::HttpServer(std::map<std::string, Resource> resources)
    : resources_(std::move(resources)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener_, generic, size) != 0 || listen(listener_, 16) != 0 ||
      getsockname(listener_, generic, &size) != 0) {
    throw std::runtime_error("cannot listen on 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  stopping_ = true;
  acceptor_.join();
  connections_.clear();
  close(listener_);
}

std::string HttpServer::url(const std::string& path) const {
  return fmt::format("http://127.0.0.1:{}{}", port_, path);
}

std::vector<Request> HttpServer::requests() const {
  const std::scoped_lock lock(mutex_);
  return requests_;
}

std::vector<std::string> HttpServer::ranges(const std::string& path) const {
  std::vector<std::string> ranges;
  for (const Request& request : requests()) {
    if (request.path == path) {
      ranges.push_back(request.range);
    }
  }
  return ranges;
}

void HttpServer::accept_all() {
  pollfd waiting{.fd = listener_, .events = POLLIN, .revents = 0};
  while (!stopping_) {
    if (poll(&waiting, 1, kPatience) > 0) {
      const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      connections_.emplace_back([this, connection] { serve(connection); });
    }
  }
}

void HttpServer::serve(int connection) {
  const std::string text = read_request(connection);
  if (text.empty()) {
    close(connection);
    return;
  }
  const std::size_t path_begin = text.find(' ') + 1;
  const Request request{.path = text.substr(path_begin, text.find(' ', path_begin) - path_begin),
                        .range = header(text, "Range"),
                        .user_agent = header(text, "User-Agent")};
  Answer answer{.status = 404};
  std::string body;
  {
    const std::scoped_lock lock(mutex_);
    requests_.push_back(request);
    if (const auto found = resources_.find(request.path); found != resources_.end()) {
      const Resource& resource = found->second;
      const std::size_t count = asked_[request.path]++;
      answer = count < resource.first.size() ? resource.first[count] : resource.then;
      body = answer.other_content.empty() ? resource.content : answer.other_content;
    }
  }
  int status = 200;
  std::string headers = answer.headers + "Connection: close\r\n";
  if (answer.status != 0) {
    status = answer.status;
    body = "not what was asked for";
  } else if (answer.ranges && !request.range.empty()) {
    const std::size_t first = std::stoul(request.range.substr(request.range.find('=') + 1));
    const std::size_t whole = body.size();
    status = first < whole ? 206 : 416;
    headers += "Content-Range: " +
               (!answer.content_range.empty() ? answer.content_range
                : first < whole ? fmt::format("bytes {}-{}/{}", first, whole - 1, whole)
                                : fmt::format("bytes */{}", whole)) +
               "\r\n";
    body.erase(0, std::min(first, whole));
  }
  if (answer.announce_length) {
    headers +=
        fmt::format("Content-Length: {}\r\n", static_cast<long>(body.size()) + answer.length_error);
  }
  if (send_all(connection, fmt::format("HTTP/1.1 {} Said\r\n{}\r\n", status, headers))) {
    send_body(connection, answer, body);
  }
  close(connection);
}

void HttpServer::send_body(int connection, const Answer& answer, const std::string& body) {
  const std::size_t limit = answer.close_after.value_or(
      answer.reset_after.value_or(answer.stall_after.value_or(body.size())));
  send_all(connection, std::string_view(body).substr(0, limit));
  if (answer.reset_after) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(connection, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  pollfd waiting{.fd = connection, .events = POLLIN, .revents = 0};
  while (answer.stall_after && !stopping_ && poll(&waiting, 1, kPatience) == 0) {
  }
}

}  // namespace carope::test
