// Writes what safetensors_header.cc reads, byte for byte as the official package does: wider
// element types first, then by name, the header padded to 8 bytes. Several files get an index, as
// Hugging Face names and cuts them.
#include <algorithm>
#include <cstdio>

#include <ckpt/error.h>
#include <ckpt/limits.h>
#include <ckpt/safetensors_target.h>

#include "base/text.h"
#include "codec/strict_json.h"
#include "format/safetensors/safetensors_header.h"

namespace ckpt {
namespace {

using nlohmann::json;
constexpr size_t kHeaderAlignment = 8;

std::string quoted(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = text},
                "is not UTF-8; safetensors holds no other text",
                "--rename gives it another name, --to torch and torch_dist hold it");
  }
}

uint64_t bytes_of(const SafetensorsSpec::Tensor& tensor) {
  return element_count(tensor.source.box.sizes) * bytes_per_element(tensor.source.tensor->dtype);
}

std::string metadata_text(const std::map<std::string, std::string>& metadata) {
  std::string text = "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    text += (text.ends_with('{') ? "" : ",") + quoted(key) + ":" + quoted(value);
  }
  return text + "}";
}

std::string entry_text(const SafetensorsSpec::Tensor& tensor, uint64_t offset_bytes) {
  std::string text = quoted(tensor.key) + R"(:{"dtype":")" +
                     std::string(*safetensors_dtype_name(tensor.source.tensor->dtype)) +
                     R"(","shape":[)";
  const Extents& shape = tensor.shape ? *tensor.shape : tensor.source.box.sizes;
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + R"(],"data_offsets":[)" + std::to_string(offset_bytes) + "," +
         std::to_string(offset_bytes + bytes_of(tensor)) + "]}";
}

// The length, the JSON and the spaces behind it.
std::string header_of(const std::vector<SafetensorsSpec::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::string text = "{" + metadata_text(metadata);
  uint64_t offset_bytes = 0;
  for (const auto& tensor : tensors) {
    text += "," + entry_text(tensor, offset_bytes);
    offset_bytes += bytes_of(tensor);
  }
  text += "}";
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (text.size() > Limits().safetensors_header_bytes_max) {
    throw Error(
        ErrorCode::Unsupported, {},
        "a header of " + std::to_string(text.size()) +
            " bytes, the format allows 100,000,000: too many tensors for one file",
        "give a folder as destination (a name without .safetensors): it takes several files");
  }
  std::string length;
  append_little_endian(length, uint64_t{text.size()});
  return length + text;
}

TargetFile make_file(std::string path, std::vector<SafetensorsSpec::Tensor> tensors,
                     const std::map<std::string, std::string>& metadata) {
  std::ranges::sort(tensors, [](const auto& a, const auto& b) {
    const int rank_a = safetensors_dtype_rank(a.source.tensor->dtype);
    const int rank_b = safetensors_dtype_rank(b.source.tensor->dtype);
    return rank_a != rank_b ? rank_a > rank_b : a.key < b.key;
  });
  TargetArchive archive;
  archive.content = RawHeader{header_of(tensors, metadata)};
  for (auto& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    archive.records.push_back({bytes, std::move(tensor.source)});
  }
  TargetFile file;
  file.path = std::move(path);
  file.archives.push_back(std::move(archive));
  return file;
}

// Consecutive tensors, as many as fit; one that does not fit into any file gets one of its own.
std::vector<std::vector<SafetensorsSpec::Tensor>> cut(std::vector<SafetensorsSpec::Tensor> tensors,
                                                      uint64_t bytes_max) {
  std::vector<std::vector<SafetensorsSpec::Tensor>> parts(1);
  uint64_t part_bytes = 0;
  for (auto& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    if (part_bytes > 0 && part_bytes + bytes > bytes_max) {
      parts.emplace_back();
      part_bytes = 0;
    }
    part_bytes += bytes;
    parts.back().push_back(std::move(tensor));
  }
  return parts;
}

std::string part_name(size_t number, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

std::vector<TargetFile> make_folder(SafetensorsSpec spec) {
  auto parts = cut(std::move(spec.tensors), spec.file_bytes_max);
  std::vector<TargetFile> files;
  if (parts.size() == 1) {
    files.push_back(make_file("model.safetensors", std::move(parts[0]), spec.metadata));
    return files;
  }
  JsonTree tree(json::object());
  json& index = *tree;
  index["metadata"] = json::object();
  index["weight_map"] = json::object();
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = part_name(i + 1, parts.size());
    for (const auto& tensor : parts[i]) {
      index["weight_map"][tensor.key] = name;
      total_bytes += bytes_of(tensor);
    }
    files.push_back(make_file(name, std::move(parts[i]), spec.metadata));
  }
  index["metadata"]["total_size"] = total_bytes;
  files.push_back({"model" + std::string(kSafetensorsIndexSuffix), {}, index.dump(2) + "\n"});
  return files;
}

}  // namespace

Target make_safetensors_target(SafetensorsSpec spec, std::vector<NotCarried> not_carried) {
  std::erase_if(spec.tensors, [&](const SafetensorsSpec::Tensor& tensor) {
    const auto refusal = safetensors_refusal(tensor.key, tensor.source.tensor->dtype);
    if (refusal) not_carried.push_back({tensor.key, *refusal, tensor.key});
    return refusal.has_value();
  });
  for (const std::string_view own : {"DCP_SHARDING_INFO", "DCP_VERSION"}) {
    spec.metadata.erase(std::string(own));
  }
  spec.metadata.try_emplace("format", "pt");
  Target target{Format::Safetensors, {}, std::move(not_carried), 0, {}};
  if (spec.as_folder) {
    target.files = make_folder(std::move(spec));
  } else {
    target.files.push_back(make_file("", std::move(spec.tensors), spec.metadata));
  }
  return target;
}

}  // namespace ckpt
