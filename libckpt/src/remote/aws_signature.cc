#include "remote/aws_signature.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "codec/sha256.h"
#include "remote/url_text.h"

namespace ckpt {
namespace {

constexpr size_t kHmacBlockBytes = 64;  // of SHA-256, for HMAC

std::string_view as_text(const Sha256& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

std::string sha256_text(std::string_view text) {
  Sha256Stream stream;
  stream.update(text);
  return hex(stream.finish());
}

std::string digits(unsigned number, size_t count) {
  std::string text = std::to_string(number);
  return std::string(count - std::min(count, text.size()), '0') + text;
}

// "20130524T000000Z"
std::string time_text(std::chrono::system_clock::time_point now) {
  const auto day = std::chrono::floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(std::chrono::floor<std::chrono::seconds>(now - day));
  return digits(static_cast<unsigned>(static_cast<int>(date.year())), 4) +
         digits(static_cast<unsigned>(date.month()), 2) +
         digits(static_cast<unsigned>(date.day()), 2) + "T" +
         digits(static_cast<unsigned>(time.hours().count()), 2) +
         digits(static_cast<unsigned>(time.minutes().count()), 2) +
         digits(static_cast<unsigned>(time.seconds().count()), 2) + "Z";
}

}  // namespace

Sha256 hmac_sha256(std::string_view key, std::string_view text) {
  std::string block(kHmacBlockBytes, '\0');
  if (key.size() > kHmacBlockBytes) {
    Sha256Stream stream;
    stream.update(key);
    const Sha256 digest = stream.finish();
    std::ranges::copy(as_text(digest), block.begin());
  } else {
    std::ranges::copy(key, block.begin());
  }
  const auto padded = [&](char byte) {
    std::string pad = block;
    for (char& c : pad) c = static_cast<char>(c ^ byte);
    return pad;
  };
  Sha256Stream inner, outer;
  inner.update(padded(0x36));
  inner.update(text);
  const Sha256 digest = inner.finish();
  outer.update(padded(0x5c));
  outer.update(as_text(digest));
  return outer.finish();
}

std::string query_text(const S3Request& request) {
  std::vector<std::string> words;
  for (const auto& [name, value] : request.query) {
    words.push_back(percent_encoded(name) + "=" + percent_encoded(value));
  }
  std::ranges::sort(words);
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : "&") + word;
  return text;
}

std::vector<std::string> signed_headers(const S3Request& request, const AwsSettings& settings,
                                        std::chrono::system_clock::time_point now) {
  const AwsCredentials& credentials = settings.credentials;
  const std::string time = time_text(now);
  const std::string day = time.substr(0, 8);
  std::map<std::string, std::string> own = {{"host", request.host},
                                            {"x-amz-content-sha256", request.content_sha256},
                                            {"x-amz-date", time}};
  if (!credentials.session_token.empty()) own["x-amz-security-token"] = credentials.session_token;
  for (const std::string& header : request.headers) {
    const size_t colon = header.find(": ");
    if (header.starts_with("x-amz-")) own[header.substr(0, colon)] = header.substr(colon + 2);
  }
  std::string headers, names;
  for (const auto& [name, value] : own) {
    headers += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical = request.method + "\n" + request.path + "\n" + query_text(request) +
                                "\n" + headers + "\n" + names + "\n" + request.content_sha256;
  const std::string scope = day + "/" + settings.region + "/s3/aws4_request";
  const std::string text =
      "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + sha256_text(canonical);

  Sha256 key = hmac_sha256("AWS4" + credentials.secret, day);
  for (const std::string_view part : {std::string_view(settings.region), std::string_view("s3"),
                                      std::string_view("aws4_request"), std::string_view(text)}) {
    key = hmac_sha256(as_text(key), part);
  }
  std::vector<std::string> all = request.headers;
  all.push_back("x-amz-content-sha256: " + request.content_sha256);
  all.push_back("x-amz-date: " + time);
  if (!credentials.session_token.empty()) {
    all.push_back("x-amz-security-token: " + credentials.session_token);
  }
  all.push_back("Authorization: AWS4-HMAC-SHA256 Credential=" + credentials.key_id + "/" + scope +
                ", SignedHeaders=" + names + ", Signature=" + hex(key));
  return all;
}

}  // namespace ckpt
