#include "remote/s3_writer.h"

#include <algorithm>
#include <utility>

#include "codec/hash_functions.h"

namespace ckpt {
namespace {

constexpr int kCompletionsMax = 5;  // a store may fail behind the head of its answer
constexpr std::string_view kAlgorithmHeader = "x-amz-checksum-algorithm";
constexpr std::string_view kSumHeader = "x-amz-checksum-sha256";
constexpr size_t kMd5Digits = 32, kUploadsMax = 10'000'000;

std::string hex_text(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) append_hex(text, byte, 2);
  return text;
}

std::string base64(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t b = 0; b < 3; ++b) word = word << 8 | (b < count ? bytes[i + b] : 0U);
    for (size_t d = 0; d < 4; ++d) text += d <= count ? kDigits[word >> (18 - 6 * d) & 63] : '=';
  }
  return text;
}

std::string unquoted(std::string_view etag) {
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return std::string(etag);
}

std::optional<std::string> md5_bytes(std::string_view etag) {
  const std::string digits = unquoted(etag);
  if (digits.size() != kMd5Digits) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    const auto byte = number_in<uint8_t>(std::string_view(digits).substr(i, 2), 16);
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
  }
  return bytes;
}

// The ETag of an object of these parts, where theirs are MD5s: the MD5 of all of them, and how many
// there are. Empty: it cannot be known.
std::string known_etag(const S3Writer::Parts& parts) {
  std::string all;
  for (const auto& [number, part] : parts) {
    const auto bytes = md5_bytes(part.etag);
    if (!bytes) return {};
    all += *bytes;
  }
  return hex_text(md5(std::as_bytes(std::span(all)))) + "-" + std::to_string(parts.size());
}

std::string xml_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return escaped;
}

std::string completion_text(const S3Writer::Upload& upload, const S3Writer::Parts& parts) {
  std::string text = R"(<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">)";
  for (const auto& [number, part] : parts) {
    text += "<Part><PartNumber>" + std::to_string(number) + "</PartNumber><ETag>" +
            xml_escaped(part.etag) + "</ETag>";
    if (upload.has_checksums) text += "<ChecksumSHA256>" + part.sha256 + "</ChecksumSHA256>";
    text += "</Part>";
  }
  return text + "</CompleteMultipartUpload>";
}

uint64_t bytes_of(const S3Writer::Parts& parts) {
  uint64_t sum = 0;
  for (const auto& [number, part] : parts) sum += part.count_bytes;
  return sum;
}

Error other_checksum(const std::string& shown) {
  return Error(
      ErrorCode::IoFailure, {shown},
      "the store does not confirm the bytes that were sent: it states another checksum, or "
      "none that is known");
}

bool is_good(const HttpResponse& answer) {
  return answer.is_whole() && answer.status >= 200 && answer.status < 300;
}

}  // namespace

HttpResponse S3Writer::send(const std::string& key, S3Request request,
                            std::span<const std::byte> body) {
  if (!body.empty()) request.content_sha256 = hex(sha256(body));
  return store_->send({"s3", bucket_, key}, request, body);
}

void S3Writer::refuse(const std::string& key, const HttpResponse& answer) const {
  throw store_->refusal(shown(key), answer, Doing::Write);
}

S3Writer::Upload S3Writer::begin(const std::string& key) {
  S3Request request{.method = "POST", .query = {{"uploads", ""}}};
  request.headers = {std::string(kAlgorithmHeader) + ": SHA256",
                     "Content-Type: application/octet-stream"};
  const HttpResponse answer = send(key, std::move(request));
  if (!is_good(answer)) refuse(key, answer);
  Upload upload{key, parse_answer(answer.body, "InitiateMultipartUploadResult", "UploadId")};
  upload.has_checksums = answer.header(kAlgorithmHeader) == "SHA256";
  return upload;
}

bool S3Writer::is_same(const Part& part, std::span<const std::byte> bytes) {
  if (part.count_bytes != bytes.size()) return false;
  if (!part.sha256.empty()) return part.sha256 == base64(sha256(bytes).bytes);
  return unquoted(part.etag) == hex_text(md5(bytes));
}

bool S3Writer::are_same(const Parts& listed, const Parts& sent) {
  return std::ranges::equal(listed, sent, [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.count_bytes == b.second.count_bytes &&
           unquoted(a.second.etag) == unquoted(b.second.etag);
  });
}

S3Writer::Part S3Writer::send_part(const Upload& upload, uint32_t number,
                                   std::span<const std::byte> bytes) {
  const Sha256 digest = sha256(bytes);
  S3Request request{.method = "PUT",
                    .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload.id}}};
  request.content_sha256 = hex(digest);
  if (upload.has_checksums) {
    request.headers = {std::string(kSumHeader) + ": " + base64(digest.bytes)};
  }
  const HttpResponse answer = store_->send({"s3", bucket_, upload.key}, request, bytes);
  if (!is_good(answer)) refuse(upload.key, answer);
  Part part{bytes.size(), answer.header("etag"), answer.header(kSumHeader)};
  if (!is_same(part, bytes)) throw other_checksum(shown(upload.key));
  return part;
}

std::optional<S3Writer::Parts> S3Writer::parts_of(Upload& upload) {
  Parts parts;
  std::string marker;
  do {
    if (parts.size() > kPartsMax) break;  // no store has as many
    S3Request request{.query = {{"uploadId", upload.id}}};
    if (!marker.empty()) request.query.emplace_back("part-number-marker", marker);
    const HttpResponse answer = send(upload.key, std::move(request));
    if (answer.status == 404 && s3_error_code(answer.body) != "NoSuchBucket") return std::nullopt;
    if (!is_good(answer)) refuse(upload.key, answer);
    PartList list = parse_part_list(answer.body);
    upload.has_checksums = list.has_checksums;
    for (auto& [number, part] : list.parts) parts.insert_or_assign(number, std::move(part));
    if (list.next_number == marker) break;
    marker = std::move(list.next_number);
  } while (!marker.empty());
  return parts;
}

std::vector<ListedUpload> S3Writer::uploads_below(const std::string& prefix) {
  std::vector<ListedUpload> all;
  UploadList page;
  do {
    S3Request request{.query = {{"uploads", ""}, {"prefix", prefix}}};
    if (!page.next_key.empty()) {
      request.query.emplace_back("key-marker", page.next_key);
      request.query.emplace_back("upload-id-marker", page.next_id);
    }
    const std::pair before(page.next_key, page.next_id);
    const HttpResponse answer = send("", std::move(request));
    if (!is_good(answer)) refuse(prefix, answer);
    page = parse_upload_list(answer.body, prefix);
    std::ranges::move(page.uploads, std::back_inserter(all));
    const bool has_moved = std::pair(page.next_key, page.next_id) != before;
    if (!page.next_key.empty() && (!has_moved || all.size() > kUploadsMax)) {
      throw Error(ErrorCode::Corrupt, {shown(prefix)}, "the store's listing has no end");
    }
  } while (!page.next_key.empty());
  return all;
}

std::optional<ListedObject> S3Writer::object_at(const std::string& key) {
  const ObjectList first = store_->list({"s3", bucket_, ""}, key, S3Store::Depth::First);
  if (first.objects.empty() || first.objects[0].key != key) return std::nullopt;
  return first.objects[0];
}

bool S3Writer::may_be(const ListedObject& object, const Parts& parts) {
  const std::string expected = known_etag(parts);
  return object.count_bytes == bytes_of(parts) &&
         (expected.empty() || unquoted(object.etag) == expected);
}

void S3Writer::complete(const Upload& upload, const Parts& parts) {
  const std::string expected = known_etag(parts);
  const std::string text = completion_text(upload, parts);
  for (int attempt = 1;; ++attempt) {
    S3Request request{.method = "POST", .query = {{"uploadId", upload.id}}};
    request.headers = {"Content-Type: text/xml", "If-None-Match: *"};
    const HttpResponse answer =
        send(upload.key, std::move(request), std::as_bytes(std::span(text)));
    const bool has_failed_late = is_good(answer) && !s3_error_code(answer.body).empty();
    if (has_failed_late && attempt < kCompletionsMax) continue;
    const bool is_done = is_good(answer) && !has_failed_late;
    if (is_done && parse_xml(answer.body).name != "CompleteMultipartUploadResult") {
      throw Error(ErrorCode::Corrupt, {shown(upload.key)}, "the store's answer is malformed");
    }
    // Ceph does not state the ETag; and an earlier attempt, whose answer was lost, may have done
    // it.
    const auto object = object_at(upload.key);
    if (is_done && !(object && may_be(*object, parts))) throw other_checksum(shown(upload.key));
    if (is_done || (object && !expected.empty() && may_be(*object, parts))) return;
    if (object && answer.status == 412) {
      throw Error(ErrorCode::AlreadyExists, {shown(upload.key)}, "has come meanwhile");
    }
    refuse(upload.key, answer);
  }
}

void S3Writer::drop(const ListedUpload& upload) {
  erase(upload.key, {.method = "DELETE", .query = {{"uploadId", upload.id}}});
}

bool S3Writer::put(const std::string& key, std::string_view text, const std::string& condition) {
  const auto bytes = std::as_bytes(std::span(text));
  if (bytes.size() > kPutBytesMax) {
    throw Error(ErrorCode::Unsupported, {shown(key)},
                "is longer than an object that is sent at once may be");
  }
  S3Request request{.method = "PUT"};
  request.headers = {condition, "Content-Type: application/octet-stream"};
  const HttpResponse answer = send(key, std::move(request), bytes);
  if (is_good(answer)) {
    const std::string etag = answer.header("etag");
    if (md5_bytes(etag) && !is_same({bytes.size(), etag, ""}, bytes)) {
      throw other_checksum(shown(key));
    }
    return true;
  }
  if (answer.status != 412 && answer.status != 409) refuse(key, answer);
  const auto there = text_of(key);  // put by an attempt whose answer was lost?
  return there && there->text == text;
}

bool S3Writer::put_new(const std::string& key, std::string_view text) {
  return put(key, text, "If-None-Match: *");
}

bool S3Writer::replace(const std::string& key, std::string_view text, const std::string& etag) {
  if (etag.empty()) return put_new(key, text);
  // Ceph compares with the ETag as it is without quotes.
  return put(key, text, "If-Match: " + etag) || put(key, text, "If-Match: " + unquoted(etag));
}

void S3Writer::remove(const std::string& key) { erase(key, {.method = "DELETE"}); }

void S3Writer::erase(const std::string& key, S3Request request) {
  const HttpResponse answer = send(key, std::move(request));
  if (answer.status != 404 && !is_good(answer)) refuse(key, answer);
}

std::optional<S3Writer::Text> S3Writer::text_of(const std::string& key) {
  const HttpResponse answer = send(key, {});
  if (answer.status == 404 && s3_error_code(answer.body) == "NoSuchKey") return std::nullopt;
  if (!is_good(answer)) throw store_->refusal(shown(key), answer, Doing::Read);
  return Text{answer.body, answer.header("etag")};
}

bool S3Writer::has_any_below(const std::string& prefix) {
  return !store_->list({"s3", bucket_, ""}, prefix, S3Store::Depth::First).objects.empty();
}

std::vector<ListedObject> S3Writer::objects_below(const std::string& prefix) {
  return store_->list({"s3", bucket_, ""}, prefix, S3Store::Depth::All).objects;
}

}  // namespace ckpt
