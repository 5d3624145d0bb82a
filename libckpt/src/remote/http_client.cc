#include "remote/http_client.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include <ckpt/error.h>

namespace ckpt::curl {
namespace {

constexpr long kAll = 3;  // CURL_GLOBAL_ALL
constexpr const char* kNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};

void* open_library() {
  for (const char* name : kNames) {
    if (void* const opened = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return opened;
  }
  throw Error(ErrorCode::Unsupported, {}, "addresses are read with libcurl, which is not installed",
              "install it (Debian: libcurl4), or copy the checkpoint to this machine first");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return;
  throw Error(ErrorCode::Unsupported, {}, std::string("this system's libcurl has no ") + name);
}

Library load() {
  void* const opened = open_library();
  Library library = {};
  find(opened, "curl_global_init", library.global_init);
  find(opened, "curl_easy_init", library.make);
  find(opened, "curl_easy_setopt", library.set);
  find(opened, "curl_easy_perform", library.perform);
  find(opened, "curl_easy_getinfo", library.info);
  find(opened, "curl_easy_reset", library.reset);
  find(opened, "curl_easy_cleanup", library.free);
  find(opened, "curl_slist_append", library.append);
  find(opened, "curl_slist_free_all", library.free_texts);
  find(opened, "curl_easy_strerror", library.error_text);
  if (library.global_init(kAll) != Ok) {
    throw Error(ErrorCode::IoFailure, {}, "libcurl cannot be started");
  }
  return library;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace ckpt::curl

namespace ckpt {
namespace {

constexpr size_t kBodyBytesMax = size_t{16} << 20;  // of what is kept as text
constexpr size_t kHeaderBytesMax = size_t{64} << 10;
constexpr long kConnectMs = 10'000, kStalledSeconds = 20, kSlowBytes = 1000;
constexpr size_t kErrorTextBytes = 256;  // CURL_ERROR_SIZE
constexpr auto kFirstWait = std::chrono::milliseconds(100);
constexpr auto kWaitMax = std::chrono::milliseconds(10'000);
constexpr auto kLook = std::chrono::milliseconds(50);  // whether it is stopped
constexpr int kAttemptsToConnect = 4;  // an address that nobody listens at is most likely mistyped

// What libcurl hands over while an answer comes.
struct Receiver {
  HttpResponse& response;
  std::span<std::byte> into;
  size_t header_bytes = 0;
  bool is_too_long = false, is_unranged = false;

  bool take_header(std::string_view line) {
    header_bytes += line.size();
    if (header_bytes > kHeaderBytesMax) return false;
    if (line.starts_with("HTTP/")) {  // of the next answer, behind a redirect or a 100
      response.headers.clear();
      const size_t space = std::min(line.find(' '), line.size() - 1);
      response.status = number_in<long>(line.substr(space + 1, 3)).value_or(0);
    }
    const size_t colon = line.find(':');
    if (colon == line.npos) return true;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    const size_t end = line.find_last_not_of(" \t\r\n");
    response.headers[name] =
        start == line.npos || end < start ? "" : std::string(line.substr(start, end + 1 - start));
    return true;
  }

  bool take_body(const char* bytes, size_t count) {
    if (response.status == 206 && !into.empty()) {
      if (count > into.size() - response.received_bytes) return !(is_too_long = true);
      std::memcpy(into.data() + response.received_bytes, bytes, count);
      response.received_bytes += count;
      return true;
    }
    if (response.status == 200 && !into.empty()) return !(is_unranged = true);
    if (count > kBodyBytesMax - response.body.size()) return !(is_too_long = true);
    response.body.append(bytes, count);
    return true;
  }
};

extern "C" size_t ckpt_curl_header(char* bytes, size_t size, size_t count, void* receiver) {
  const bool is_taken = static_cast<Receiver*>(receiver)->take_header({bytes, size * count});
  return is_taken ? size * count : 0;
}

extern "C" size_t ckpt_curl_body(char* bytes, size_t size, size_t count, void* receiver) {
  return static_cast<Receiver*>(receiver)->take_body(bytes, size * count) ? size * count : 0;
}

extern "C" size_t ckpt_curl_send(char* bytes, size_t size, size_t count, void* body) {
  auto& left = *static_cast<std::span<const std::byte>*>(body);
  const size_t sent = std::min(size * count, left.size());
  std::memcpy(bytes, left.data(), sent);
  left = left.subspan(sent);
  return sent;
}

bool comes_again(int code) {
  constexpr int kFinal[] = {
      curl::UnsupportedProtocol, curl::MalformedUrl,   curl::UnknownProxy, curl::WriteRefused,
      curl::TooManyRedirects,    curl::BadCertificate, curl::BadCaFile};
  return std::ranges::find(kFinal, code) != std::end(kFinal);
}

// One request on one handle.
class Exchange {
 public:
  Exchange(curl::Handle* handle, const HttpRequest& request, HttpResponse& response)
      : handle_(handle), request_(request), response_(response), receiver_{response, request.into} {
    for (const std::string& header : request.headers) {
      headers_ = library_.append(headers_, header.c_str());
    }
    headers_ = library_.append(headers_, "Expect:");  // no wait for a 100 before a body
  }
  Exchange(const Exchange&) = delete;
  ~Exchange() { library_.free_texts(headers_); }

  void run(const HttpOptions& options) {
    set(options);
    const int code = library_.perform(handle_);
    if (code == curl::Ok || receiver_.is_unranged) {
      const char* url = nullptr;
      library_.info(handle_, curl::EffectiveUrl, &url);
      response_.url = url == nullptr ? request_.url : url;
      return;
    }
    response_.failure = error_text_[0] != '\0' ? error_text_ : library_.error_text(code);
    if (receiver_.is_too_long) response_.failure = "the answer is longer than the request allows";
    response_.is_final = comes_again(code);
    response_.is_unreached = code == curl::NoConnection || code == curl::UnknownHost;
  }

 private:
  void set(const HttpOptions& options) {
    const auto& put = library_.set;
    put(handle_, curl::Url, request_.url.c_str());
    put(handle_, curl::PathAsIs, 1L);
    put(handle_, curl::NoSignal, 1L);
    put(handle_, curl::Protocols, curl::kHttp | curl::kHttps);
    put(handle_, curl::RedirectProtocols, curl::kHttp | curl::kHttps);
    put(handle_, curl::FollowRedirects, request_.follows_redirects ? 1L : 0L);
    put(handle_, curl::RedirectsMax, 5L);
    put(handle_, curl::ConnectMs, kConnectMs);
    put(handle_, curl::SpeedBytesMin, kSlowBytes);
    put(handle_, curl::SpeedSeconds, kStalledSeconds);
    put(handle_, curl::BufferBytes, 512L << 10);
    put(handle_, curl::Headers, headers_);
    put(handle_, curl::ErrorText, error_text_);
    put(handle_, curl::HeaderFunction, &ckpt_curl_header);
    put(handle_, curl::HeaderData, &receiver_);
    put(handle_, curl::WriteFunction, &ckpt_curl_body);
    put(handle_, curl::WriteData, &receiver_);
    if (!options.ca_file.empty()) put(handle_, curl::CaFile, options.ca_file.c_str());
    if (request_.method == "PUT" || request_.method == "POST") {
      put(handle_, curl::Upload, 1L);
      put(handle_, curl::ReadFunction, &ckpt_curl_send);
      put(handle_, curl::ReadData, &body_);
      put(handle_, curl::UploadBytes, static_cast<int64_t>(request_.body.size()));
    }
    if (request_.method != "GET") put(handle_, curl::Method, request_.method.c_str());
  }

  const curl::Library& library_ = curl::library();
  curl::Handle* handle_;
  const HttpRequest& request_;
  HttpResponse& response_;
  Receiver receiver_;
  curl::Texts* headers_ = nullptr;
  std::span<const std::byte> body_ = request_.body;
  char error_text_[kErrorTextBytes] = {};
};

}  // namespace

const std::string& HttpResponse::header(std::string_view name) const {
  static const std::string kNone;
  const auto found = headers.find(name);
  return found == headers.end() ? kNone : found->second;
}

// Handles that are not at work: each has its connection.
struct HttpClient::Connections {
  struct Free {
    void operator()(curl::Handle* handle) const { curl::library().free(handle); }
  };
  using Owned = std::unique_ptr<curl::Handle, Free>;

  Owned take() {
    const std::scoped_lock lock(mutex);
    if (idle.empty()) return Owned(curl::library().make());
    Owned handle = std::move(idle.back());
    idle.pop_back();
    return handle;
  }
  void give_back(Owned handle) {
    const std::scoped_lock lock(mutex);
    idle.push_back(std::move(handle));
  }

  std::mutex mutex;
  std::vector<Owned> idle;
  std::mt19937 random{std::random_device()()};
};

HttpClient::HttpClient(HttpOptions options)
    : options_(std::move(options)), connections_(std::make_unique<Connections>()) {}
HttpClient::~HttpClient() = default;

HttpResponse HttpClient::send(const HttpRequest& request) {
  HttpResponse response;
  auto handle = connections_->take();
  if (handle == nullptr) throw Error(ErrorCode::IoFailure, {}, "libcurl cannot be started");
  Exchange(handle.get(), request, response).run(options_);
  curl::library().reset(handle.get());  // its connection stays
  connections_->give_back(std::move(handle));
  return response;
}

bool is_temporary(const HttpResponse& answer) {
  constexpr long kStatuses[] = {408, 429, 500, 502, 503, 504};
  if (!answer.is_whole()) return !answer.is_final;
  return std::ranges::find(kStatuses, answer.status) != std::end(kStatuses);
}

bool HttpClient::wait(int attempt, const HttpResponse& answer) {
  const int most = answer.is_unreached ? std::min(kAttemptsToConnect, options_.attempts_max)
                                       : options_.attempts_max;
  if (attempt >= most) return false;
  const auto longest = std::min(kFirstWait * (1 << std::min(attempt, 10)), kWaitMax);
  std::chrono::milliseconds pause{};
  {
    const std::scoped_lock lock(connections_->mutex);
    pause = std::chrono::milliseconds(std::uniform_int_distribution<int64_t>(
        longest.count() / 4, longest.count())(connections_->random));
  }
  const auto asked = number_in<uint16_t>(answer.header("retry-after"));
  if (asked) pause = std::max(pause, std::min(std::chrono::milliseconds(1000 * *asked), kWaitMax));
  const auto until = std::chrono::steady_clock::now() + pause;
  while (!is_stopped_ && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::min(pause, kLook));
  }
  return !is_stopped_;
}

HttpResponse HttpClient::send_until_answered(const Make& make) {
  for (int attempt = 1;; ++attempt) {
    HttpResponse answer = send(make());
    if (!is_temporary(answer) || !wait(attempt, answer)) return answer;
  }
}

}  // namespace ckpt
