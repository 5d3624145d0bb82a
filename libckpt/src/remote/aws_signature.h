// AWS Signature Version 4: who sends a request, proven by a key that is not sent.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/hash.h>

#include "remote/aws_settings.h"

namespace ckpt {

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
