// Addresses as text: s3://bucket/prefix, https://host/path.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ckpt {

// The path of a path: an address keeps its slashes, whatever joined it, without one at the end.
std::string address_text(const std::filesystem::path& path);

struct Address {
  std::string scheme;  // "s3", lower case
  std::string host;    // or the bucket; with the port
  std::string path;    // without the first slash; not decoded
};
// Throws InvalidArgument where it has no host, or a user's name and password before it;
// Unsupported for a query, which may be a signature.
Address parse_address(const std::filesystem::path& path);

// RFC 3986: all but letters, digits and -._~ as %XX; slashes stay where `kept` names them.
std::string percent_encoded(std::string_view text, std::string_view kept = {});

}  // namespace ckpt
