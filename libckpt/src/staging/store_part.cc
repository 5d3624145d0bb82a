#include "staging/store_part.h"

#include <tuple>
#include <utility>

#include <ckpt/error.h>

#include "codec/strict_json.h"
#include "io/publish.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr size_t kDepth = 5;  // [job, [[path, ..., [[number, ...], ...]], ...]]

using PartRow = std::tuple<uint32_t, uint64_t, std::string, std::string>;
using FileRow = std::tuple<std::string, uint64_t, uint32_t, std::string, std::string, bool,
                           std::vector<PartRow>>;
using Rows = std::pair<std::string, std::vector<FileRow>>;

[[noreturn]] void refuse(const std::string&, const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {}, "the record of a part " + problem);
}

FileRow row_of(const SentFile& file) {
  const auto& [piece, upload, parts] = file;
  FileRow row{piece.path, piece.bytes.count_bytes, piece.crc32, upload.key,
              upload.id,  upload.has_checksums,    {}};
  for (const auto& [number, part] : parts) {
    std::get<6>(row).emplace_back(number, part.count_bytes, part.etag, part.sha256);
  }
  return row;
}

SentFile file_of(FileRow row) {
  auto& [path, count_bytes, crc32, key, id, has_checksums, parts] = row;
  SentFile file{{std::move(path), {0, count_bytes}, crc32}, {std::move(key), std::move(id)}, {}};
  file.upload.has_checksums = has_checksums;
  for (auto& [number, part_bytes, etag, sha256] : parts) {
    file.parts[number] = {part_bytes, std::move(etag), std::move(sha256)};
  }
  return file;
}

}  // namespace

std::string StorePart::text() const {
  Rows rows{job, {}};
  for (const SentFile& file : files) rows.second.push_back(row_of(file));
  return std::string(kTextMark) + "part\n" +
         json(rows).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<StorePart> StorePart::parse(const std::string& text) {
  const std::string head = std::string(kTextMark) + "part\n";
  if (!text.starts_with(head)) return std::nullopt;
  const JsonTree tree = parse_strict_json(text.substr(head.size()), {kDepth, refuse});
  try {
    Rows rows = tree->get<Rows>();
    StorePart part{std::move(rows.first), {}};
    for (FileRow& row : rows.second) part.files.push_back(file_of(std::move(row)));
    return part;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace ckpt
