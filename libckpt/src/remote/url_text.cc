#include "remote/url_text.h"

#include <algorithm>
#include <vector>

#include <ckpt/error.h>

namespace ckpt {
namespace {

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

// RFC 3986, 5.2.4: "a/../b" is "b".
std::string without_dots(const std::string& path) {
  std::vector<std::string> names;
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find('/', start), path.size());
    std::string name = path.substr(start, end - start);
    start = end + 1;
    if (name == "..") {
      if (!names.empty()) names.pop_back();
    } else if (name != ".") {
      names.push_back(std::move(name));
    }
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "/") + name;
  return text;
}

}  // namespace

std::string address_text(const std::filesystem::path& path) {
  std::string text = path.string();
  while (text.ends_with('/') && !text.ends_with("://")) text.pop_back();
  return text;
}

Address parse_address(const std::filesystem::path& path) {
  const std::string text = address_text(path);
  const size_t colon = text.find("://");
  const size_t start = colon == text.npos ? text.size() : colon + 3;
  const size_t slash = std::min(text.find('/', start), text.size());
  Address address{text.substr(0, std::min(colon, text.size())), text.substr(start, slash - start),
                  slash < text.size() ? without_dots(text.substr(slash + 1)) : ""};
  std::ranges::transform(address.scheme, address.scheme.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (address.host.find('@') != text.npos) {
    throw Error(ErrorCode::InvalidArgument, {},
                "an address with a user's name or password in it is not read",
                "credentials come from the environment or ~/.aws/credentials");
  }
  if (address.scheme != "s3" && text.find_first_of("?#") != text.npos) {
    throw Error(ErrorCode::Unsupported, {},
                "an address with a query (?...) is not read: it may hold a signature, and would be "
                "printed",
                "give the address of the file or folder alone, or s3://BUCKET/PREFIX");
  }
  if (address.host.empty()) {
    throw Error(
        ErrorCode::InvalidArgument, {text},
        address.scheme == "s3" ? "the address names no bucket" : "the address names no host",
        address.scheme == "s3" ? "expected s3://BUCKET/PREFIX" : "");
  }
  return address;
}

std::string percent_encoded(std::string_view text, std::string_view kept) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    if (is_unreserved(c) || kept.find(c) != kept.npos) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return encoded;
}

}  // namespace ckpt
