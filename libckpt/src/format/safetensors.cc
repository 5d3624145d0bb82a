// Format `safetensors`: u64 header length, a JSON header, then the tensors' bytes back to back.
//   {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, "__metadata__":
//   {...}}
// Offsets count from the end of the header; the tensors tile the rest of the file without holes.
#include <algorithm>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "base/checked_math.h"
#include "format/format.h"
#include "io/file.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

using nlohmann::json;

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName kDTypeNames[] = {
    {"F64", DType::Float64},        {"F32", DType::Float32},
    {"F16", DType::Float16},        {"BF16", DType::BFloat16},
    {"I64", DType::Int64},          {"I32", DType::Int32},
    {"I16", DType::Int16},          {"I8", DType::Int8},
    {"U64", DType::UInt64},         {"U32", DType::UInt32},
    {"U16", DType::UInt16},         {"U8", DType::UInt8},
    {"BOOL", DType::Bool},          {"F8_E4M3", DType::Float8E4M3FN},
    {"F8_E5M2", DType::Float8E5M2}, {"F8_E8M0", DType::Float8E8M0FNU},
    {"C64", DType::Complex64},
};

class HeaderReader {
 public:
  HeaderReader(const File& file, const Limits& limits) : file_(file), limits_(limits) {}

  std::vector<TensorEntry> run() {
    read_header();
    std::vector<TensorEntry> tensors;
    for (const auto& [key, entry] : header_.items()) {
      if (key != "__metadata__") tensors.push_back(read_tensor(key, entry));
    }
    std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
      return a.chunks[0].region.bytes.offset_bytes < b.chunks[0].region.bytes.offset_bytes;
    });
    check_tiling(tensors);
    return tensors;
  }

 private:
  [[noreturn]] void corrupt(const std::string& key, std::string problem) const {
    throw Error(ErrorCode::Corrupt, {file_.file_name(), std::nullopt, key}, std::move(problem));
  }

  void read_header() {
    std::byte length[8];
    file_.read_at(0, length);
    const uint64_t header_bytes = ByteReader(length).u64();
    if (header_bytes > limits_.safetensors_header_bytes_max ||
        header_bytes > file_.size_bytes() - 8) {
      corrupt({}, "a header of " + std::to_string(header_bytes) + " bytes");
    }
    std::string text(header_bytes, '\0');
    file_.read_at(8, std::as_writable_bytes(std::span(text)));
    header_ = json::parse(text, refuse_duplicates(), false);
    if (!header_.is_object()) corrupt({}, "the header is no JSON object");
    data_offset_bytes_ = 8 + header_bytes;
  }

  // nlohmann keeps the last of equal keys without a word; the format allows none.
  json::parser_callback_t refuse_duplicates() {
    return [this, seen = std::vector<std::unordered_set<std::string>>()](
               int depth, json::parse_event_t event, json& parsed) mutable {
      if (event == json::parse_event_t::object_start) {
        if (depth > 2) corrupt({}, "the header is nested too deeply");
        seen.emplace_back();
      } else if (event == json::parse_event_t::object_end) {
        seen.pop_back();
      } else if (event == json::parse_event_t::key &&
                 !seen.back().insert(parsed.get<std::string>()).second) {
        corrupt(parsed.get<std::string>(), "appears twice in the header");
      }
      return true;
    };
  }

  uint64_t count(const json& value, const std::string& key) const {
    if (!value.is_number_unsigned()) corrupt(key, "holds something that is no size");
    return value.get<uint64_t>();
  }

  DType dtype(const json& entry, const std::string& key) const {
    const auto found = entry.find("dtype");
    if (found == entry.end() || !found->is_string()) corrupt(key, "has no dtype");
    const auto text = found->get<std::string>();
    for (const DTypeName& row : kDTypeNames) {
      if (row.name == text) return row.dtype;
    }
    throw Error(ErrorCode::Unsupported, {file_.file_name(), std::nullopt, key},
                "dtype '" + escaped(text) + "' is not read");
  }

  TensorEntry read_tensor(const std::string& key, const json& entry) {
    if (!entry.is_object() || !entry.contains("shape") || !entry["shape"].is_array() ||
        !entry.contains("data_offsets") || !entry["data_offsets"].is_array() ||
        entry["data_offsets"].size() != 2 || entry["shape"].size() > limits_.dims_max) {
      corrupt(key, "its entry is not {dtype, shape, data_offsets}");
    }
    TensorEntry tensor{{}, key, dtype(entry, key), {}, {}};
    for (const json& size : entry["shape"]) tensor.shape.push_back(count(size, key));
    const uint64_t begin = count(entry["data_offsets"][0], key);
    const uint64_t end = count(entry["data_offsets"][1], key);
    const auto bytes = checked_mul(element_count(tensor.shape), bytes_per_element(tensor.dtype));
    const uint64_t data_bytes = file_.size_bytes() - data_offset_bytes_;
    if (begin > end || end > data_bytes || !bytes || *bytes != end - begin) {
      corrupt(key, "bytes " + std::to_string(begin) + " to " + std::to_string(end) +
                       " do not fit its shape and the file");
    }
    tensor.chunks.push_back(
        {whole(tensor.shape), {0, {data_offset_bytes_ + begin, end - begin}, Wrapping::None}});
    return tensor;
  }

  void check_tiling(const std::vector<TensorEntry>& tensors) const {
    uint64_t expected = data_offset_bytes_;
    for (const TensorEntry& tensor : tensors) {
      const ByteRange bytes = tensor.chunks[0].region.bytes;
      if (bytes.count_bytes == 0) continue;
      if (bytes.offset_bytes != expected) corrupt(tensor.key, "leaves a hole or overlaps another");
      expected = bytes.end_bytes();
    }
    if (expected != file_.size_bytes()) corrupt({}, "bytes follow the last tensor");
  }

  const File& file_;
  const Limits& limits_;
  json header_;
  uint64_t data_offset_bytes_ = 0;
};

}  // namespace

Contents read_safetensors_contents(const Location& location, const Limits& limits) {
  Contents contents;
  const File file = File::open(location.folder / *location.only_file, *location.only_file);
  contents.catalog.format = Format::Safetensors;
  contents.catalog.files.push_back({*location.only_file, file.size_bytes()});
  contents.catalog.tensors = HeaderReader(file, limits).run();
  contents.catalog.index();
  return contents;
}

}  // namespace ckpt
