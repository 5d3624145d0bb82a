// Which store, and as whom: what the AWS tools take from the environment and from their files; and
// AWS Signature Version 4: who sends a request, proven by a key that is not sent.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/hash.h>

#include "base/text.h"

namespace ckpt {

// The environment; nullopt or empty: not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;

// Never printed.
struct AwsCredentials {
  std::string key_id, secret, session_token;
  std::string origin;  // where they were found, for errors
};

struct AwsSettings {
  AwsCredentials credentials;
  std::string region = "us-east-1";
  std::string endpoint;  // "http://host:port"; empty: Amazon's own
  bool has_bucket_in_host = false;
  std::string ca_file;
  int attempts_max = 10;
};

// Throws NotFound where there are no credentials; Unsupported for a way to get some that is not
// gone: a role, single sign-on, a process, a web identity, instance metadata.
AwsSettings read_aws_settings(const Variables& variables);

// "[section]", "name = value"; names below an indented one as "outer.inner". Throws Corrupt where a
// line is neither.
using Profiles = TextMap<TextMap<std::string>>;
Profiles parse_profiles(std::string_view text, const std::string& file);

// A request before it is signed. Names and values of the query are not escaped.
struct S3Request {
  std::string method = "GET";
  std::string host = {};  // with a port that is not the scheme's
  std::string path = {};  // escaped, with its first slash
  std::vector<std::pair<std::string, std::string>> query = {};
  std::vector<std::string> headers = {};  // "range: bytes=0-9"; signed: those of "x-amz-..."
  std::string content_sha256 = std::string(kEmptySha256);

  static constexpr std::string_view kEmptySha256 =
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
};

// Sorted and escaped, as it is signed and sent.
std::string query_text(const S3Request& request);

// All headers to be sent.
std::vector<std::string> signed_headers(const S3Request& request, const AwsSettings& settings,
                                        std::chrono::system_clock::time_point now);

Sha256 hmac_sha256(std::string_view key, std::string_view text);

}  // namespace ckpt
