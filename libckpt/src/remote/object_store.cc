#include "remote/object_store.h"

#include <algorithm>

namespace ckpt {
namespace {

constexpr uint64_t kProgressBytes = 64 << 10;  // after which a new failure is the first one again

// "bytes 10-13/256"
struct ContentRange {
  uint64_t first = 0, last = 0, total = 0;
};

std::optional<ContentRange> content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  const size_t dash = text.find('-'), slash = text.find('/');
  if (!text.starts_with(kUnit) || dash == text.npos || slash == text.npos || dash > slash)
    return std::nullopt;
  const auto first = number_in<uint64_t>(text.substr(kUnit.size(), dash - kUnit.size()));
  const auto last = number_in<uint64_t>(text.substr(dash + 1, slash - dash - 1));
  const auto total = number_in<uint64_t>(text.substr(slash + 1));
  if (!first || !last || !total || *first > *last || *last >= *total) return std::nullopt;
  return ContentRange{*first, *last, *total};
}

Error changed(const std::string& shown) {
  return Error(ErrorCode::IoFailure, {shown}, "changed while it was read",
               "wait until who writes it has finished, then run it again");
}

bool is_other(const std::string& seen, const std::string& pinned) {
  return !seen.empty() && !pinned.empty() && seen != pinned;
}

// Throws where the answer is not of the object that was seen first, or of other bytes of it.
void check_part(const RemoteObject& object, uint64_t offset_bytes, const HttpResponse& answer) {
  const auto range = content_range(answer.header("content-range"));
  if (is_other(answer.header("etag"), object.etag) ||
      is_other(answer.header("last-modified"), object.modified) ||
      (range && range->total != object.count_bytes)) {
    throw changed(object.shown);
  }
  const std::string& encoding = answer.header("content-encoding");
  if (!range || range->first != offset_bytes || (!encoding.empty() && encoding != "identity")) {
    throw Error(ErrorCode::IoFailure, {object.shown},
                "the store's answer holds other bytes than the requested ones");
  }
}

// One line of a library, or of a server.
std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

std::string answer_text(const HttpResponse& answer) {
  if (!answer.is_whole()) return printable(answer.failure);
  const std::string code = s3_error_code(answer.body);
  return std::to_string(answer.status) + (code.empty() ? "" : " " + printable(code));
}

// Where nothing more is known of an answer.
Error failure(const std::string& shown, const HttpResponse& answer, Doing doing) {
  if (answer.is_unreached) {
    return Error(ErrorCode::IoFailure, {shown}, "cannot be reached: " + printable(answer.failure));
  }
  if (answer.status == 412 || answer.status == 416) return changed(shown);
  if (answer.status == 404) return Error(ErrorCode::NotFound, {shown}, "is no longer there");
  const std::string text = answer_text(answer);
  return Error(ErrorCode::IoFailure, {shown},
               is_temporary(answer)
                   ? "failed again and again: " + text
                   : std::string("cannot be ") + (doing == Doing::Read ? "read" : "written") +
                         ": the store answers " + text);
}

struct Refusal {
  std::string_view code;
  ErrorCode kind;
  const char* problem;
  const char* hint;
};

constexpr const char* kOtherPlace =
    "set AWS_REGION to its region, and AWS_ENDPOINT_URL where the store is not Amazon's";
constexpr const char* kNewToken = "get new credentials, with a new AWS_SESSION_TOKEN";

constexpr std::string_view kAccessDenied = "AccessDenied";

constexpr Refusal kRefusals[] = {
    {"NoSuchBucket", ErrorCode::NotFound, "the bucket does not exist", ""},
    {"InvalidBucketName", ErrorCode::NotFound, "is not a bucket's name", ""},
    {"InvalidAccessKeyId", ErrorCode::IoFailure, "the store does not know the access key", ""},
    {"SignatureDoesNotMatch", ErrorCode::IoFailure, "the secret access key is wrong", ""},
    {"ExpiredToken", ErrorCode::IoFailure, "the session token has expired", kNewToken},
    {"InvalidToken", ErrorCode::IoFailure, "the session token is not valid", kNewToken},
    {"InvalidClientTokenId", ErrorCode::IoFailure, "the session token is not valid", kNewToken},
    {"RequestTimeTooSkewed", ErrorCode::IoFailure, "this machine's clock differs from the store's",
     "set the clock"},
    {kAccessDenied, ErrorCode::IoFailure, "these credentials may not read it", ""},
    {"PermanentRedirect", ErrorCode::IoFailure, "the bucket is in another place", kOtherPlace},
    {"TemporaryRedirect", ErrorCode::IoFailure, "the bucket is in another place", kOtherPlace},
    {"AuthorizationHeaderMalformed", ErrorCode::IoFailure, "the bucket is in another region",
     kOtherPlace},
    {"InvalidObjectState", ErrorCode::IoFailure, "is archived, and must be restored first", ""},
};

}  // namespace

HttpResponse ObjectStore::send_range(const RemoteObject& object, uint64_t offset_bytes,
                                     std::span<std::byte> out) {
  std::vector<std::string> headers = {"Range: bytes=" + std::to_string(offset_bytes) + "-" +
                                      std::to_string(offset_bytes + out.size() - 1)};
  // A weak one never matches.
  if (object.etag.starts_with('"')) headers.push_back("If-Match: " + object.etag);
  HttpRequest request = request_of(object, std::move(headers));
  request.into = out;
  return client_.send(request);
}

void ObjectStore::read(const RemoteObject& object, uint64_t offset_bytes,
                       std::span<std::byte> out) {
  int failures = 0;
  while (!out.empty()) {
    const HttpResponse answer = send_range(object, offset_bytes, out);
    if (answer.status == 206) check_part(object, offset_bytes, answer);
    const uint64_t received = answer.received_bytes;
    offset_bytes += received;
    out = out.subspan(received);
    if (out.empty()) return;
    const bool is_short = answer.status == 206 && !answer.is_final;
    failures = received >= kProgressBytes ? 1 : failures + 1;
    const bool comes_again = is_short || is_temporary(answer);
    if (!comes_again || !client_.wait(failures, answer)) {
      throw refusal(object.shown, answer, Doing::Read);
    }
  }
}

S3Store::S3Store(AwsSettings settings)
    : ObjectStore({settings.attempts_max, settings.ca_file}), settings_(std::move(settings)) {}

// https://bucket.s3.region.amazonaws.com/key; other stores, and names that no certificate fits,
// have the bucket in the path.
HttpRequest S3Store::request_to(const std::string& bucket, const std::string& key,
                                S3Request request) const {
  const bool is_amazon = settings_.endpoint.empty();
  const bool has_bucket_in_host =
      (is_amazon || settings_.has_bucket_in_host) && bucket.find('.') == bucket.npos;
  const std::string endpoint =
      is_amazon ? "https://s3." + settings_.region + ".amazonaws.com" : settings_.endpoint;
  const size_t host_start = endpoint.find("://") + 3;
  const std::string scheme = endpoint.substr(0, host_start);
  const std::string authority = endpoint.substr(host_start);
  const size_t slash = std::min(authority.find('/'), authority.size());
  request.host = (has_bucket_in_host ? bucket + "." : "") + authority.substr(0, slash);
  request.path = authority.substr(slash) +
                 (has_bucket_in_host ? "" : "/" + percent_encoded(bucket)) + "/" +
                 percent_encoded(key, "/");
  HttpRequest made;
  made.method = request.method;
  const std::string query = query_text(request);
  made.url = scheme + request.host + request.path + (query.empty() ? "" : "?" + query);
  made.headers = signed_headers(request, settings_, std::chrono::system_clock::now());
  return made;
}

HttpRequest S3Store::request_of(const RemoteObject& object,
                                std::vector<std::string> headers) const {
  S3Request request;
  request.headers = std::move(headers);
  return request_to(object.address.host, object.address.path, std::move(request));
}

HttpResponse S3Store::send(const Address& address, const S3Request& request,
                           std::span<const std::byte> body) {
  return client_.send_until_answered([&] {
    HttpRequest made = request_to(address.host, address.path, request);
    made.body = body;
    return made;
  });
}

Error S3Store::refusal(const std::string& shown, const HttpResponse& answer, Doing doing) const {
  const std::string code = s3_error_code(answer.body);
  const auto row = std::ranges::find(kRefusals, std::string_view(code), &Refusal::code);
  std::string region = answer.header("x-amz-bucket-region");
  if (answer.is_whole() && row != std::end(kRefusals)) {
    std::string problem = row->problem;
    if (row->code == kAccessDenied && doing == Doing::Write) {
      problem = "these credentials may not write it";
    }
    if (row->kind == ErrorCode::IoFailure && answer.status == 403) {
      problem += " (" + printable(code) + "; credentials of " + settings_.credentials.origin + ")";
    }
    if (answer.status != 403 && !region.empty()) problem += ": " + printable(region);
    return Error(row->kind, {shown}, problem, row->hint);
  }
  if (answer.is_whole() && answer.status >= 300 && answer.status < 400) {
    return Error(ErrorCode::IoFailure, {shown},
                 "the store redirects to another place" +
                     (region.empty() ? "" : ": region " + printable(region)),
                 kOtherPlace);
  }
  return failure(shown, answer, doing);
}

ObjectList S3Store::list(const Address& bucket, const std::string& prefix, Depth depth) {
  constexpr size_t kPagesMax = 10'000;
  ObjectList all;
  std::string token;
  for (size_t page = 0; page < kPagesMax; ++page) {
    S3Request request;
    request.query = {{"list-type", "2"}, {"prefix", prefix}};
    request.query.emplace_back("max-keys", depth == Depth::First ? "1" : "1000");
    if (depth == Depth::OneFolder) request.query.emplace_back("delimiter", "/");
    if (!token.empty()) request.query.emplace_back("continuation-token", token);
    const HttpResponse answer = send({bucket.scheme, bucket.host, ""}, request);
    const std::string shown = address_text("s3://" + bucket.host + "/" + prefix);
    if (answer.status != 200 || !answer.is_whole()) throw refusal(shown, answer, Doing::Read);
    try {
      ObjectList list = parse_object_list(answer.body, prefix);
      std::ranges::move(list.objects, std::back_inserter(all.objects));
      std::ranges::move(list.prefixes, std::back_inserter(all.prefixes));
      if (list.next_token == token && !token.empty()) {
        throw Error(ErrorCode::Corrupt, {}, "the store's listing has no end");
      }
      token = std::move(list.next_token);
    } catch (Error& error) {
      throw error.within({.file = shown, .key = {}});
    }
    if (token.empty() || depth == Depth::First) return all;
  }
  throw Error(ErrorCode::Unsupported, {bucket.host}, "holds more objects than are listed");
}

HttpRequest WebStore::request_of(const RemoteObject& object,
                                 std::vector<std::string> headers) const {
  HttpRequest request;
  request.url = object.address.scheme + "://" + object.address.host + "/" +
                percent_encoded(object.address.path, "/%+,;:@!$&'()*=");
  request.headers = std::move(headers);
  request.follows_redirects = true;
  return request;
}

Error WebStore::refusal(const std::string& shown, const HttpResponse& answer, Doing doing) const {
  if (answer.is_whole() && answer.status == 200) {
    return Error(ErrorCode::Unsupported, {shown},
                 "the server gives whole files only, no ranges of them",
                 "download it first: curl -fLO " + shown);
  }
  if (answer.status == 401 || answer.status == 403) {
    return Error(ErrorCode::IoFailure, {shown}, "the server does not allow to read it");
  }
  return failure(shown, answer, doing);
}

std::optional<RemoteObject> WebStore::find(const Address& address, const std::string& shown,
                                           bool& is_folder) {
  RemoteObject object{address, shown};
  std::byte first[1];
  const HttpResponse answer = client_.send_until_answered([&] {
    HttpRequest request = request_of(object, {"Range: bytes=0-0"});
    request.into = first;
    return request;
  });
  is_folder = answer.is_whole() && answer.url.ends_with('/');
  if (answer.status == 404 || answer.status == 410 || is_folder) return std::nullopt;
  object.etag = answer.header("etag");
  object.modified = answer.header("last-modified");
  if (answer.status == 416 && answer.header("content-range") == "bytes */0") return object;
  const auto range = content_range(answer.header("content-range"));
  if (answer.status != 206 || !range) throw refusal(shown, answer, Doing::Read);
  object.count_bytes = range->total;
  return object;
}

}  // namespace ckpt
