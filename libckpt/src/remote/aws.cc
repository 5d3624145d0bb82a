#include "remote/aws.h"

#include <algorithm>
#include <map>

#include <ckpt/error.h>
#include <ckpt/named_file.h>

#include "codec/hash_functions.h"
#include "io/file.h"
#include "remote/url_text.h"

namespace ckpt {
namespace {

constexpr uint64_t kFileBytesMax = uint64_t{1} << 20;
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Ways to credentials that need a service or a program.
struct OtherWay {
  const char* name;
  const char* what;
};
constexpr OtherWay kOtherWays[] = {
    {"role_arn", "a role to be assumed"},
    {"sso_session", "single sign-on"},
    {"sso_start_url", "single sign-on"},
    {"credential_process", "a program that gives credentials"},
    {"web_identity_token_file", "a web identity"},
    {"credential_source", "credentials of the machine"},
};
constexpr OtherWay kOtherVariables[] = {
    {"AWS_WEB_IDENTITY_TOKEN_FILE", "a web identity"},
    {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "credentials of the container"},
    {"AWS_CONTAINER_CREDENTIALS_FULL_URI", "credentials of the container"},
};
constexpr const char* kExport =
    "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, as `aws configure "
    "export-credentials --format env` prints them";

class SettingsReader {
 public:
  explicit SettingsReader(const Variables& variables) : variables_(variables) {
    profile_ =
        variable("AWS_PROFILE").value_or(variable("AWS_DEFAULT_PROFILE").value_or("default"));
    const std::string home = variable("HOME").value_or("");
    credentials_file_ =
        variable("AWS_SHARED_CREDENTIALS_FILE").value_or(home + "/.aws/credentials");
    config_file_ = variable("AWS_CONFIG_FILE").value_or(home + "/.aws/config");
    read(credentials_file_, profile_, of_credentials_);
    read(config_file_, profile_ == "default" ? profile_ : "profile " + profile_, of_config_);
  }

  AwsSettings read_all() {
    AwsSettings settings;
    settings.credentials = find_credentials();
    check_characters(settings.credentials);
    settings.endpoint =
        first({variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"),
               value_of(of_config_, "s3.endpoint_url"), value_of(of_config_, "endpoint_url")})
            .value_or("");
    while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
    check_endpoint(settings.endpoint);
    settings.region = first({variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"),
                             value_of(of_config_, "region")})
                          .value_or(settings.region);
    if (settings.region.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") !=
        std::string::npos) {
      throw Error(ErrorCode::InvalidArgument, {}, "AWS_REGION is not the name of a region");
    }
    settings.has_bucket_in_host =
        value_of(of_config_, "s3.addressing_style").value_or("") == "virtual";
    settings.ca_file =
        first({variable("AWS_CA_BUNDLE"), value_of(of_config_, "ca_bundle")}).value_or("");
    const std::string attempts =
        first({variable("AWS_MAX_ATTEMPTS"), value_of(of_config_, "max_attempts")}).value_or("10");
    settings.attempts_max = number_in<int>(attempts).value_or(0);
    if (settings.attempts_max < 1 || settings.attempts_max > 100) {
      throw Error(ErrorCode::InvalidArgument, {},
                  "AWS_MAX_ATTEMPTS (max_attempts) is not a number from 1 to 100");
    }
    return settings;
  }

 private:
  using Profile = TextMap<std::string>;

  std::optional<std::string> variable(const char* name) const {
    auto value = variables_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  static std::optional<std::string> value_of(const Profile& profile, std::string_view name) {
    const auto found = profile.find(name);
    return found == profile.end() ? std::nullopt : std::optional(found->second);
  }
  static std::optional<std::string> first(
      std::initializer_list<std::optional<std::string>> values) {
    for (const auto& value : values) {
      if (value) return value;
    }
    return std::nullopt;
  }

  void read(const std::string& file, const std::string& section, Profile& found) {
    const auto text =
        unless_gone<std::string>([&] { return read_named_file(file, kFileBytesMax); });
    Profiles profiles = parse_profiles(text.value_or(""), file);
    const auto own = profiles.find(section);
    if (own == profiles.end()) return;
    found = std::move(own->second);
    has_profile_ = true;
  }

  // They become lines of a request.
  static void check_characters(const AwsCredentials& credentials) {
    for (const std::string* text :
         {&credentials.key_id, &credentials.secret, &credentials.session_token}) {
      if (std::ranges::all_of(*text, [](char c) { return c > ' ' && c < 127; })) continue;
      throw Error(ErrorCode::InvalidArgument, {},
                  "the credentials of " + credentials.origin +
                      " have a space, or what is not ASCII, in them");
    }
  }

  static void check_endpoint(const std::string& endpoint) {
    if (endpoint.empty() || endpoint.starts_with("http://") || endpoint.starts_with("https://"))
      return;
    throw Error(ErrorCode::InvalidArgument, {},
                "the endpoint of the object store (AWS_ENDPOINT_URL) is not an http:// or https:// "
                "address");
  }

  AwsCredentials find_credentials() const {
    const auto id = variable("AWS_ACCESS_KEY_ID"), secret = variable("AWS_SECRET_ACCESS_KEY");
    if (id.has_value() != secret.has_value()) {
      throw Error(ErrorCode::InvalidArgument, {},
                  std::string(id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID") +
                      " is not set, but the other half of the credentials is");
    }
    if (id) return {*id, *secret, variable("AWS_SESSION_TOKEN").value_or(""), "the environment"};
    for (const auto& [profile, file] :
         {std::pair(&of_credentials_, &credentials_file_), std::pair(&of_config_, &config_file_)}) {
      const auto key_id = value_of(*profile, "aws_access_key_id");
      const auto key = value_of(*profile, "aws_secret_access_key");
      if (!key_id || !key) continue;
      return {*key_id, *key, value_of(*profile, "aws_session_token").value_or(""),
              "profile '" + escaped(profile_) + "' of " + escaped(*file)};
    }
    refuse_other_ways();
    if (profile_ != "default" && !has_profile_) {
      throw Error(ErrorCode::NotFound, {},
                  "AWS_PROFILE names '" + profile_ + "', which is not in " + credentials_file_ +
                      " or " + config_file_);
    }
    throw Error(
        ErrorCode::NotFound, {}, "no credentials for the object store were found",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of "
        "~/.aws/credentials; what needs none is read from its https:// address; credentials "
        "of the machine (instance metadata) are not asked for");
  }

  void refuse_other_ways() const {
    const auto refuse = [](const char* name, const char* what) {
      throw Error(ErrorCode::Unsupported, {},
                  std::string("credentials are to come from ") + what + " (" + name +
                      "), which is not supported yet",
                  kExport);
    };
    for (const OtherWay& way : kOtherVariables) {
      if (variable(way.name)) refuse(way.name, way.what);
    }
    for (const OtherWay& way : kOtherWays) {
      if (value_of(of_config_, way.name) || value_of(of_credentials_, way.name))
        refuse(way.name, way.what);
    }
  }

  const Variables& variables_;
  std::string profile_, credentials_file_, config_file_;
  bool has_profile_ = false;
  Profile of_credentials_, of_config_;
};

constexpr size_t kHmacBlockBytes = 64;  // of SHA-256, for HMAC

std::string_view as_text(const Sha256& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
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

Profiles parse_profiles(std::string_view text, const std::string& file) {
  Profiles profiles;
  TextMap<std::string>* section = nullptr;
  std::string outer;
  size_t number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    ++number;
    const std::string_view words = trimmed(line);
    if (words.empty() || words[0] == '#' || words[0] == ';') continue;
    if (words[0] == '[' && words.back() == ']') {
      section = &profiles[std::string(trimmed(words.substr(1, words.size() - 2)))];
      outer.clear();
      continue;
    }
    const size_t equals = words.find('=');
    if (equals == words.npos || section == nullptr) {  // what stands there may be a secret
      throw Error(ErrorCode::Corrupt, {file},
                  "line " + std::to_string(number) + " is neither [section] nor name = value");
    }
    const std::string name(trimmed(words.substr(0, equals)));
    const std::string value(trimmed(words.substr(equals + 1)));
    const bool is_inner = kBlanks.find(line[0]) != kBlanks.npos && !outer.empty();
    if (!is_inner) outer = value.empty() ? name : "";
    (*section)[is_inner ? outer + "." + name : name] = value;
  }
  return profiles;
}

AwsSettings read_aws_settings(const Variables& variables) {
  return SettingsReader(variables).read_all();
}

Sha256 hmac_sha256(std::string_view key, std::string_view text) {
  std::string block(key.size() > kHmacBlockBytes ? as_text(sha256(key)) : key);
  block.resize(kHmacBlockBytes, '\0');
  const auto padded = [&](char byte) {
    std::string pad = block;
    for (char& c : pad) c = static_cast<char>(c ^ byte);
    return pad;
  };
  const Sha256 inner = sha256(padded(0x36).append(text));
  return sha256(padded(0x5c).append(as_text(inner)));
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
      "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + hex(sha256(canonical));

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
