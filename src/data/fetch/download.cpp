#include "data/fetch/download.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "core/file.h"
#include "core/hash.h"
#include "core/progress.h"

namespace carope {
namespace {

using std::chrono::milliseconds;

constexpr int kOk = 200;
constexpr int kPartialContent = 206;
constexpr int kRequestTimeout = 408;
constexpr int kRangeNotSatisfiable = 416;
constexpr int kTooManyRequests = 429;
constexpr int kServerError = 500;

/// Whether the same request may succeed later.
bool is_transient(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
      return true;
    default:
      return false;
  }
}

/// "bytes 5-9/100" as 5 and 100, "bytes */100" as nothing and 100; what is not there is nothing.
struct ContentRange {
  std::optional<std::int64_t> first, total;
};

std::optional<std::int64_t> leading_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && number >= 0 ? std::optional(number) : std::nullopt;
}

ContentRange parse_content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  const std::size_t slash = text.find('/');
  if (!text.starts_with(kUnit) || slash == std::string_view::npos) {
    return {};
  }
  return {leading_number(text.substr(kUnit.size())), leading_number(text.substr(slash + 1))};
}

CURL* new_handle() {
  static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
  CURL* handle = kReady == CURLE_OK ? curl_easy_init() : nullptr;
  check<DownloadError>(handle != nullptr, "libcurl cannot be used; check its installation");
  return handle;
}

std::string digest_of(const std::filesystem::path& path) {
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                               file.bytes().size());
  Progress progress("checking " + path.filename().string(), static_cast<std::int64_t>(bytes.size()),
                    "B");
  Sha256 hash;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    const std::string_view piece = bytes.substr(begin, kPiece);
    hash.add(piece);
    progress.advance(static_cast<std::int64_t>(piece.size()));
  }
  return hash.digest();
}

bool is_there(const Download& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file.path, error)) {
    return false;
  }
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(file.path));
  return size == file.bytes.value_or(size) &&
         (file.sha256.empty() || digest_of(file.path) == file.sha256);
}

/// Brings one file's bytes into its ".part", in as many attempts as that takes.
class Transfer {
 public:
  Transfer(const Download& file, const DownloadOptions& options);

  /// Ends when all bytes are there, as far as their number is known.
  void run();
  FileWriter& part() { return part_; }

 private:
  /// What ended an attempt, if it is worth another one, and what the server asks to wait.
  struct Setback {
    std::string reason;
    milliseconds wait{0};
  };

  std::optional<Setback> attempt();
  std::optional<Setback> judge_status(int status);
  /// Decides from the answer's headers where its body belongs; false where it is of no use.
  bool begin();
  std::size_t receive(std::string_view bytes);
  void restart();

  template <class T>
  void set(CURLoption option, T value) {
    // In parentheses it is the function and not the macro, which wants a constant option.
    const CURLcode code = (curl_easy_setopt)(curl_.get(), option, value);
    check<DownloadError>(code == CURLE_OK, "libcurl refuses option {}: {}; install 7.85 or later",
                         static_cast<int>(option), curl_easy_strerror(code));
  }
  std::string header(const char* name) const;
  int status() const;
  std::int64_t size() const { return static_cast<std::int64_t>(part_.size()); }
  [[noreturn]] void give_up(const std::string& reason, const char* remedy) const;

  const Download& file_;
  const DownloadOptions& options_;
  FileWriter part_;
  Progress progress_;
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl_;
  std::array<char, CURL_ERROR_SIZE> curl_says_{};
  bool use_ranges_ = true;

  // Of the file as the last useful answer described it.
  std::optional<std::int64_t> total_;
  std::string etag_;

  // Of the running attempt.
  bool begun_ = false;
  std::string refusal_;           // why the answer is of no use
  std::exception_ptr exception_;  // may not pass through libcurl
};

Transfer::Transfer(const Download& file, const DownloadOptions& options)
    : file_(file),
      options_(options),
      part_(file.path, FileWriter::GivenUp::kKeep),
      progress_(file.path.filename().string(), file.bytes.value_or(0), "B"),
      curl_(new_handle(), curl_easy_cleanup) {
  if (file_.sha256.empty() || size() > file_.bytes.value_or(size())) {
    restart();
  }
  progress_.start_at(size());
  set(CURLOPT_URL, file_.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, 10L);
  set(CURLOPT_FAILONERROR, 1L);
  set(CURLOPT_USERAGENT, "carope");
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_timeout.count()));
  set(CURLOPT_LOW_SPEED_LIMIT, options_.stall_speed);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_timeout.count()));
  set(CURLOPT_BUFFERSIZE, 256L * 1024L);
  set(CURLOPT_ERRORBUFFER, curl_says_.data());
  set(CURLOPT_WRITEDATA, this);
  set(
      CURLOPT_WRITEFUNCTION, +[](const char* bytes, std::size_t, std::size_t count, void* self) {
        return static_cast<Transfer*>(self)->receive({bytes, count});
      });
}

void Transfer::run() {
  std::int64_t longest = size();
  int failures = 0;
  while (size() == 0 || size() != file_.bytes) {
    const std::optional<Setback> setback = attempt();
    if (!setback) {
      return;
    }
    failures = size() > longest ? 0 : failures + 1;
    longest = std::max(longest, size());
    if (failures >= options_.attempts) {
      give_up(fmt::format("{} ({} attempts in a row brought nothing further)", setback->reason,
                          failures),
              "check the network");
    }
    const milliseconds backoff = options_.first_delay * (1LL << std::clamp(failures - 1, 0, 20));
    const milliseconds delay = std::min(std::max(backoff, setback->wait), options_.longest_delay);
    progress_.note(fmt::format("{}; next attempt in {}", setback->reason,
                               duration(static_cast<double>(delay.count()) / 1e3)));
    progress_.advance_to(size());
    std::this_thread::sleep_for(delay);
    progress_.note("");
  }
}

std::optional<Transfer::Setback> Transfer::attempt() {
  const std::string range = fmt::format("{}-", size());
  set(CURLOPT_RANGE, use_ranges_ && size() > 0 ? range.c_str() : nullptr);
  begun_ = false;
  refusal_.clear();
  curl_says_[0] = '\0';
  const CURLcode code = curl_easy_perform(curl_.get());
  if (exception_) {
    std::rethrow_exception(std::exchange(exception_, nullptr));
  }
  if (code == CURLE_HTTP_RETURNED_ERROR) {
    return judge_status(status());
  }
  if (code == CURLE_OK && !begun_) {
    begin();  // an empty body
  }
  if (!refusal_.empty()) {
    return Setback{refusal_};
  }
  if (code != CURLE_OK) {
    const std::string reason = curl_says_[0] != '\0' ? curl_says_.data() : curl_easy_strerror(code);
    if (!is_transient(code)) {
      give_up(reason, "check the address");
    }
    return Setback{reason};
  }
  const std::int64_t whole = file_.bytes.value_or(total_.value_or(size()));
  if (size() < whole) {
    return Setback{fmt::format("the answer ended after {} of {} bytes", size(), whole)};
  }
  return std::nullopt;
}

std::optional<Transfer::Setback> Transfer::judge_status(int status) {
  if (status == kRangeNotSatisfiable && size() > 0) {
    if (parse_content_range(header("Content-Range")).total == size() && !file_.bytes) {
      return std::nullopt;  // an earlier process died between the last byte and the rename
    }
    restart();
    return Setback{"the server has no bytes behind those of an earlier attempt"};
  }
  const std::string reason = fmt::format("the server answered HTTP {}", status);
  if (status == kRequestTimeout || status == kTooManyRequests || status >= kServerError) {
    curl_off_t seconds = 0;
    curl_easy_getinfo(curl_.get(), CURLINFO_RETRY_AFTER, &seconds);
    return Setback{reason, std::chrono::seconds(seconds)};
  }
  give_up(reason, "check the address, and whether it needs an account");
}

bool Transfer::begin() {
  begun_ = true;
  const std::string content_range = header("Content-Range");
  const std::string etag = header("ETag");
  ContentRange range{.first = 0, .total = leading_number(header("Content-Length"))};
  if (status() == kPartialContent) {
    range = parse_content_range(content_range);
  } else if (status() != kOk) {
    give_up(fmt::format("the server answered HTTP {}, which is no content", status()),
            "check the address");
  }
  if (file_.bytes && range.total && range.total != file_.bytes) {
    refusal_ =
        fmt::format("the server offers {} bytes, {} were expected", *range.total, *file_.bytes);
  } else if (status() == kPartialContent && range.first != size()) {
    refusal_ =
        fmt::format("asked for the bytes from {}, the server answered '{}'", size(), content_range);
    use_ranges_ = false;
  } else if (status() == kPartialContent && size() > 0 &&
             ((total_ && range.total && total_ != range.total) ||
              (etag.starts_with('"') && etag_.starts_with('"') && etag != etag_))) {
    refusal_ = "the file changed on the server between two attempts";
    restart();
  }
  if (!refusal_.empty()) {
    return false;
  }
  if (status() == kOk && size() > 0) {
    restart();  // the server does not know ranges: this is the whole file
  }
  total_ = range.total;
  etag_ = etag;
  return true;
}

std::size_t Transfer::receive(std::string_view bytes) {
  try {
    if (!begun_ && !begin()) {
      return 0;
    }
    const auto count = static_cast<std::int64_t>(bytes.size());
    if (size() + count > file_.bytes.value_or(size() + count)) {
      refusal_ = fmt::format("the server sent more than the {} bytes expected", *file_.bytes);
      restart();
      return 0;
    }
    part_.write(bytes);
    part_.flush();
    progress_.advance(count);
    return bytes.size();
  } catch (...) {
    exception_ = std::current_exception();
    return 0;
  }
}

void Transfer::restart() {
  part_.restart();
  progress_.start_at(0);
}

std::string Transfer::header(const char* name) const {
  curl_header* found = nullptr;
  const bool there = curl_easy_header(curl_.get(), name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK;
  return there ? found->value : std::string{};
}

int Transfer::status() const {
  long status = 0;
  curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

void Transfer::give_up(const std::string& reason, const char* remedy) const {
  const std::string kept =
      size() > 0 ? fmt::format("; {} are kept in {}, from where it will go on",
                               si(static_cast<double>(size()), "B"), part_.part().string())
                 : std::string{};
  throw DownloadError(fmt::format("cannot fetch {} to {}: {}; {}, then run the command again{}",
                                  file_.url, file_.path.string(), reason, remedy, kept));
}

}  // namespace

void download(const Download& file, const DownloadOptions& options) {
  std::error_code error;
  check<FileError>(!std::filesystem::is_directory(file.path, error),
                   "{} is a directory where the file {} was to go; move it away",
                   file.path.string(), file.url);
  if (is_there(file)) {
    return;
  }
  make_folder(file.path.parent_path());
  for (const bool last_chance : {false, true}) {
    Transfer transfer(file, options);
    try {
      transfer.run();
    } catch (const FileError& failure) {
      throw FileError(
          fmt::format("{}; what has arrived of {} is kept and the next run goes on from there",
                      failure.what(), file.url));
    }
    const std::string found = file.sha256.empty() ? "" : digest_of(transfer.part().part());
    if (found == file.sha256) {
      transfer.part().commit();
      return;
    }
    std::filesystem::remove(transfer.part().part());
    check<DownloadError>(!last_chance,
                         "{} brought other bytes than expected for {}, twice: SHA-256 is {}, {} "
                         "was expected; the file may have been replaced, or a proxy answers in its "
                         "place: try another network or mirror",
                         file.url, file.path.string(), found, file.sha256);
  }
}

}  // namespace carope
