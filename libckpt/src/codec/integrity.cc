#include "codec/integrity.h"

#include <charconv>

#include <nlohmann/json.hpp>

#include <ckpt/error.h>

#include "base/text.h"
#include "codec/strict_json.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr size_t kDepthMax = 8;

// Lower case, as Python writes it: one spelling for one hash.
std::optional<Sha256> parse_digest(std::string_view text) {
  Sha256 digest;
  if (text.size() != 2 * digest.bytes.size() ||
      text.find_first_not_of("0123456789abcdef") != text.npos) {
    return std::nullopt;
  }
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const char* const begin = text.data() + 2 * i;
    std::from_chars(begin, begin + 2, digest.bytes[i], 16);
  }
  return digest;
}

[[noreturn]] void corrupt(const RandomAccess& file, std::string key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {file.file_name(), std::nullopt, std::move(key)},
              std::move(problem));
}

JsonTree parse(const RandomAccess& file, const Limits& limits) {
  // Python keeps the last of equal keys, and the others are lost.
  JsonTree document = parse_strict_json(
      all_of(file, limits.manifest_bytes_max),
      {kDepthMax,
       [&](const std::string& key, const std::string& problem) { corrupt(file, key, problem); }});
  if (!document->is_object()) corrupt(file, {}, "is not a JSON object");
  return document;
}

}  // namespace

FileHashes read_integrity(const RandomAccess& file, const Limits& limits) {
  const JsonTree document = parse(file, limits);
  const auto algorithm = document->find(kAlgorithmKey);
  const auto files = document->find("files");
  if (algorithm == document->end() || !algorithm->is_string()) {
    corrupt(file, kAlgorithmKey, "expected the name of the hash algorithm");
  }
  if (algorithm->get<std::string>() != "sha256") {
    throw Error(ErrorCode::Unsupported, {file.file_name(), std::nullopt, kAlgorithmKey},
                "'" + escaped(algorithm->get<std::string>()) +
                    "' is not a known algorithm; expected 'sha256'");
  }
  if (files == document->end() || !files->is_object())
    corrupt(file, "files", "expected an object with the hash of each file");
  FileHashes hashes;
  for (const auto& [name, value] : files->items()) {
    const auto digest =
        value.is_string() ? parse_digest(value.get_ref<const std::string&>()) : std::nullopt;
    if (!digest) corrupt(file, name, "its hash is not 64 lower-case hexadecimal digits");
    hashes.emplace(name, *digest);
  }
  return hashes;
}

std::string integrity_text(const FileHashes& hashes) {
  JsonTree document(json::object());
  (*document)[kAlgorithmKey] = "sha256";
  json& files = (*document)["files"] = json::object();
  for (const auto& [name, hash] : hashes) files[name] = hex(hash);
  return document->dump(2);
}

}  // namespace ckpt
