#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace carope::test {

/// How one request is answered. As it is, the content is served with ranges, as a good server does.
struct Answer {
  int status = 0;                            // instead of content
  std::string headers{};                     // further lines, each ending in \r\n
  bool ranges = true;                        // false: a Range is ignored
  bool announce_length = true;               // false: the body ends where the connection does
  long length_error = 0;                     // announced minus true length
  std::string content_range{};               // instead of the true one
  std::string other_content{};               // instead of the resource's
  std::optional<std::size_t> close_after{};  // bytes of the body; then the connection ends
  std::optional<std::size_t> reset_after{};  // the same, with a reset
  std::optional<std::size_t> stall_after{};  // the same, but nothing comes any more
};

struct Resource {
  std::string content;
  std::vector<Answer> first{};  // how the first requests are answered, one each
  Answer then{};                // and all further ones
};

struct Request {
  std::string path;
  std::string range;  // as the client wrote it, e.g. "bytes=100-"
  std::string user_agent;
};

/// An HTTP/1.1 server on this machine's loopback that misbehaves as told, and remembers what it was
/// asked. A path that was not given is answered with 404.
class HttpServer {
 public:
  explicit HttpServer(std::map<std::string, Resource> resources);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url(const std::string& path = "") const;
  std::vector<Request> requests() const;
  /// The Range of each request for a path.
  std::vector<std::string> ranges(const std::string& path) const;

 private:
  void accept_all();
  void serve(int connection);
  void send_body(int connection, const Answer& answer, const std::string& body);

  std::map<std::string, Resource> resources_;
  std::map<std::string, std::size_t> asked_;
  std::vector<Request> requests_;
  mutable std::mutex mutex_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::vector<std::jthread> connections_;
  std::jthread acceptor_;
};

}  // namespace carope::test
