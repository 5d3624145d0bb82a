#include "format/safetensors/safetensors_header.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "base/checked_math.h"
#include "codec/strict_json.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kHeaderDepthMax = 3;                  // the header, an entry, its shape
constexpr uint64_t kDataBytesMax = uint64_t{1} << 62;  // no file is longer

struct DTypeName {
  std::string_view name;
  DType dtype;
};
// In the order in which the official package counts them: its files hold the last ones first.
constexpr DTypeName kDTypeNames[] = {
    {"BOOL", DType::Bool},
    {"U8", DType::UInt8},
    {"I8", DType::Int8},
    {"F8_E5M2", DType::Float8E5M2},
    {"F8_E4M3", DType::Float8E4M3FN},
    {"F8_E8M0", DType::Float8E8M0FNU},
    {"F8_E4M3FNUZ", DType::Float8E4M3FNUZ},
    {"F8_E5M2FNUZ", DType::Float8E5M2FNUZ},
    {"I16", DType::Int16},
    {"U16", DType::UInt16},
    {"F16", DType::Float16},
    {"BF16", DType::BFloat16},
    {"I32", DType::Int32},
    {"U32", DType::UInt32},
    {"F32", DType::Float32},
    {"C64", DType::Complex64},
    {"F64", DType::Float64},
    {"I64", DType::Int64},
    {"U64", DType::UInt64},
};

class HeaderReader {
 public:
  HeaderReader(const RandomAccess& file, uint32_t file_index, ByteRange blob, const Limits& limits)
      : file_(file), file_index_(file_index), blob_(blob), limits_(limits) {}

  SafetensorsHeader run() {
    read_json();
    SafetensorsHeader header;
    for (const auto& [key, entry] : json_->items()) {
      if (key == "__metadata__") {
        header.metadata = read_metadata(entry);
      } else {
        header.tensors.push_back(read_tensor(key, entry));
      }
    }
    std::ranges::sort(header.tensors, {}, [](const TensorEntry& tensor) {
      const ByteRange bytes = tensor.chunks[0].region.bytes;
      return std::pair(bytes.offset_bytes, bytes.end_bytes());
    });
    header.end_bytes = check_tiling(header.tensors);
    return header;
  }

 private:
  [[noreturn]] void corrupt(const std::string& key, std::string problem) const {
    throw Error(ErrorCode::Corrupt, {file_.file_name(), blob_.offset_bytes, key},
                std::move(problem));
  }

  void read_json() {
    std::byte length[kLengthBytes];
    if (blob_.count_bytes < kLengthBytes) {
      throw Error(
          ErrorCode::Corrupt, {file_.file_name(), blob_.offset_bytes},
          "too short to hold the length of the header: " + truncated_text(file_.size_bytes()))
          .mark_incomplete();
    }
    file_.read_at(blob_.offset_bytes, length);
    const uint64_t header_bytes = ByteReader(length).u64();
    if (header_bytes > limits_.safetensors_header_bytes_max) {
      corrupt({},
              "the header's length, " + std::to_string(header_bytes) + " bytes, exceeds the limit");
    }
    if (header_bytes > blob_.count_bytes - kLengthBytes) {
      throw Error(ErrorCode::Corrupt, {file_.file_name(), blob_.offset_bytes},
                  "the header's length, " + std::to_string(header_bytes) +
                      " bytes, exceeds the file: " + truncated_text(file_.size_bytes()))
          .mark_incomplete();
    }
    std::string text(header_bytes, '\0');
    file_.read_at(blob_.offset_bytes + kLengthBytes, std::as_writable_bytes(std::span(text)));
    if (!text.starts_with('{')) corrupt({}, "the header does not start with '{'");
    text.erase(text.find_last_not_of(' ') + 1);
    if (!text.ends_with('}')) corrupt({}, "the header does not end with '}' (and spaces)");
    json_ = parse_strict_json(
        text, {kHeaderDepthMax, [this](const std::string& key, const std::string& problem) {
                 corrupt(key, problem + " in the header");
               }});
    if (!json_->is_object()) corrupt({}, "the header is not a JSON object");
    data_offset_bytes_ = blob_.offset_bytes + kLengthBytes + header_bytes;
  }

  std::map<std::string, std::string> read_metadata(const json& entry) const {
    if (!entry.is_object()) corrupt("__metadata__", "is not a JSON object");
    std::map<std::string, std::string> metadata;
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) corrupt("__metadata__", "has a value that is not a string");
      metadata.emplace(key, value.get<std::string>());
    }
    return metadata;
  }

  uint64_t count(const json& value, const std::string& key) const {
    if (!value.is_number_unsigned()) corrupt(key, "has a value that is not a valid size");
    return value.get<uint64_t>();
  }

  DType dtype(const json& entry, const std::string& key) const {
    const auto found = entry.find("dtype");
    if (found == entry.end() || !found->is_string()) corrupt(key, "has no dtype");
    const auto text = found->get<std::string>();
    const auto row = std::ranges::find(kDTypeNames, text, &DTypeName::name);
    if (row != std::end(kDTypeNames)) return row->dtype;
    throw Error(ErrorCode::Unsupported, {file_.file_name(), blob_.offset_bytes, key},
                "dtype '" + escaped(text) + "' is not read");
  }

  TensorEntry read_tensor(const std::string& key, const json& entry) const {
    if (!entry.is_object() || !entry.contains("shape") || !entry["shape"].is_array() ||
        !entry.contains("data_offsets") || !entry["data_offsets"].is_array() ||
        entry["data_offsets"].size() != 2 || entry["shape"].size() > limits_.dims_max) {
      corrupt(key, "expected an entry with dtype, shape and data_offsets");
    }
    TensorEntry tensor{{}, key, dtype(entry, key), {}, {}};
    std::optional<uint64_t> bytes = bytes_per_element(tensor.dtype);
    for (const json& size : entry["shape"]) {
      tensor.shape.push_back(count(size, key));
      bytes = bytes ? checked_mul(*bytes, tensor.shape.back()) : std::nullopt;
    }
    check_shape_of(tensor);
    const uint64_t begin = count(entry["data_offsets"][0], key);
    const uint64_t end = count(entry["data_offsets"][1], key);
    if (begin > end || end > kDataBytesMax || !bytes || *bytes != end - begin) {
      corrupt(key, "bytes " + std::to_string(begin) + " to " + std::to_string(end) +
                       " do not match its shape, or lie outside the file");
    }
    const ByteRange data{data_offset_bytes_ + begin, end - begin};
    tensor.chunks.push_back({whole(tensor.shape), {.file = file_index_, .bytes = data}});
    return tensor;
  }

  void check_shape_of(const TensorEntry& tensor) const {
    try {
      check_shape(tensor.shape);
    } catch (Error& error) {
      throw error.within({file_.file_name(), blob_.offset_bytes, tensor.key});
    }
  }

  // Where the last one ends.
  uint64_t check_tiling(const std::vector<TensorEntry>& tensors) const {
    uint64_t expected = data_offset_bytes_;
    for (const TensorEntry& tensor : tensors) {
      const ByteRange bytes = tensor.chunks[0].region.bytes;
      if (bytes.offset_bytes != expected)
        corrupt(tensor.key, "leaves a gap, or overlaps another tensor");
      expected = bytes.end_bytes();
    }
    if (expected < blob_.end_bytes()) corrupt({}, "bytes follow the last tensor");
    if (expected > blob_.end_bytes() && !limits_.allow_missing_data) refuse_cut(tensors, expected);
    return expected;
  }

  // Says of which tensors' bytes the file holds none, or not all.
  [[noreturn]] void refuse_cut(const std::vector<TensorEntry>& tensors, uint64_t expected) const {
    const auto first = std::ranges::find_if(tensors, [&](const TensorEntry& tensor) {
      return tensor.chunks[0].region.bytes.end_bytes() > blob_.end_bytes();
    });
    throw truncated({file_.file_name(), blob_.offset_bytes, first->key}, file_.size_bytes(),
                    expected);
  }

  const RandomAccess& file_;
  uint32_t file_index_;
  ByteRange blob_;
  const Limits& limits_;
  JsonTree json_;
  uint64_t data_offset_bytes_ = 0;
};

}  // namespace

std::optional<std::string_view> safetensors_dtype_name(DType dtype) {
  const auto row = std::ranges::find(kDTypeNames, dtype, &DTypeName::dtype);
  return row == std::end(kDTypeNames) ? std::nullopt : std::optional(row->name);
}

int safetensors_dtype_rank(DType dtype) {
  const auto row = std::ranges::find(kDTypeNames, dtype, &DTypeName::dtype);
  return static_cast<int>(row - std::begin(kDTypeNames));
}

std::optional<std::string> safetensors_refusal(std::string_view key, DType dtype) {
  if (key == "__metadata__") return "safetensors reserves this name";
  if (!safetensors_dtype_name(dtype)) return "safetensors has no " + std::string(name(dtype));
  return std::nullopt;
}

SafetensorsHeader read_safetensors_header(const RandomAccess& file, uint32_t file_index,
                                          ByteRange blob, const Limits& limits) {
  return HeaderReader(file, file_index, blob, limits).run();
}

}  // namespace ckpt
