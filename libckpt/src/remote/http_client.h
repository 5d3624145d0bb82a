// HTTP requests, again where the network or the server fails for a moment.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace ckpt {

struct HttpRequest {
  std::string method = "GET";
  std::string url;                   // escaped
  std::vector<std::string> headers;  // "name: value"
  std::span<const std::byte> body;   // of PUT and POST
  std::span<std::byte> into;         // of a 206: where its body goes; of a 200 nothing is taken
  bool follows_redirects = false;
};

struct HttpResponse {
  long status = 0;               // 0: none came
  TextMap<std::string> headers;  // names in lower case
  std::string body;              // of all but a 206
  std::string url;               // after redirects
  uint64_t received_bytes = 0;   // of `into`
  std::string failure;           // of the network, where the body is not whole
  bool is_final = false;         // the failure would come again
  bool is_unreached = false;     // nobody listens there

  const std::string& header(std::string_view name) const;
  bool is_whole() const { return failure.empty(); }
};

struct HttpOptions {
  int attempts_max = 10;
  std::string ca_file;  // of certificates; empty: the system's
};

// Safe to use from many threads. Each keeps the connection that it used, for the next who asks.
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();

  // One attempt.
  HttpResponse send(const HttpRequest& request);

  // Attempts until a whole answer comes that no later one would change; waits between them, longer
  // each time and at random. `make` is asked for each, since signatures have a time. The last
  // answer where all attempts failed.
  using Make = std::function<HttpRequest()>;
  HttpResponse send_until_answered(const Make& make);

  // Waits after attempt n (from 1) failed, at least as long as the answer asks. False where there
  // is to be no other.
  bool wait(int attempt, const HttpResponse& answer);
  void stop(bool is_stopped) { is_stopped_ = is_stopped; }  // nothing is tried again

 private:
  struct Connections;
  HttpOptions options_;
  std::atomic<bool> is_stopped_ = false;
  std::unique_ptr<Connections> connections_;
};

// Whether the same request may have another answer soon: the network failed, or the server said
// that it was busy.
bool is_temporary(const HttpResponse& answer);

}  // namespace ckpt
