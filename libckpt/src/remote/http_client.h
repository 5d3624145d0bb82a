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

// libcurl, opened when the first address is read: programs start without it, and are built without
// it. What is declared here is what its ABI fixes; tests compare it with its headers.
namespace ckpt::curl {

struct Handle;  // CURL
struct Texts {  // curl_slist
  char* text;
  Texts* next;
};

// Kinds of values: long, pointer, function, curl_off_t.
constexpr int kLong = 0, kPointer = 10000, kFunction = 20000, kOffset = 30000;

enum Option : int {
  WriteData = kPointer + 1,
  Url = kPointer + 2,
  ReadData = kPointer + 9,
  ErrorText = kPointer + 10,
  WriteFunction = kFunction + 11,
  ReadFunction = kFunction + 12,
  SpeedBytesMin = kLong + 19,
  SpeedSeconds = kLong + 20,
  Headers = kPointer + 23,
  HeaderData = kPointer + 29,
  Method = kPointer + 36,
  Upload = kLong + 46,
  FollowRedirects = kLong + 52,
  CaFile = kPointer + 65,
  RedirectsMax = kLong + 68,
  HeaderFunction = kFunction + 79,
  BufferBytes = kLong + 98,
  NoSignal = kLong + 99,
  UploadBytes = kOffset + 115,
  ConnectMs = kLong + 156,
  Protocols = kLong + 181,
  RedirectProtocols = kLong + 182,
  PathAsIs = kLong + 234,
};

enum Info : int { ResponseCode = 0x200000 + 2, EffectiveUrl = 0x100000 + 1 };

constexpr long kHttp = 1, kHttps = 2;  // of Protocols

enum Code : int {  // CURLcode
  Ok = 0,
  UnsupportedProtocol = 1,
  MalformedUrl = 3,
  UnknownProxy = 5,
  UnknownHost = 6,
  NoConnection = 7,
  WriteRefused = 23,
  TooManyRedirects = 47,
  BadCertificate = 60,
  BadCaFile = 77,
};

struct Library {
  int (*global_init)(long flags);
  Handle* (*make)();
  int (*set)(Handle*, Option, ...);
  int (*perform)(Handle*);
  int (*info)(Handle*, Info, ...);
  void (*reset)(Handle*);
  void (*free)(Handle*);
  Texts* (*append)(Texts*, const char*);
  void (*free_texts)(Texts*);
  const char* (*error_text)(int code);
};

// Throws Error(Unsupported) where this system has none.
const Library& library();

}  // namespace ckpt::curl

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
