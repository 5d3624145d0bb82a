// Format `safetensors`: one file, several files with an index, or the files that the ranks of
// PyTorch's HuggingFaceStorageWriter wrote, each with a part of every tensor.
//
//   NAME.safetensors.index.json  {"metadata": {...}, "weight_map": {KEY: FILE, ...}}
//   shard-RRRRR-model-00001-of-00001.safetensors, with __metadata__.DCP_SHARDING_INFO =
//                                {KEY: {"saved_offsets": [...]}, ...}
#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "base/checked_math.h"
#include "base/text.h"
#include "codec/strict_json.h"
#include "format/foreign/foreign.h"
#include "format/safetensors/safetensors_header.h"
#include "io/directory.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr size_t kDepthMax = 8;  // of an index
constexpr std::string_view kShardingInfo = "DCP_SHARDING_INFO";

[[noreturn]] void corrupt(const std::string& file, std::string_view key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {file, std::nullopt, std::string(key)}, std::move(problem));
}

SafetensorsHeader add_file(const Location& location, const std::string& name, const Limits& limits,
                           Contents& contents) {
  const auto index = static_cast<uint32_t>(contents.catalog.files.size());
  const auto file = open_source(location, name, name, limits);
  contents.catalog.files.push_back({name, file->size_bytes()});
  return read_safetensors_header(*file, index, {0, file->size_bytes()}, limits);
}

Limits with_missing_data(Limits limits, bool allowed) {
  limits.allow_missing_data = allowed;
  return limits;
}

// nullopt where it ends inside of its header; FileEntry::lack has what it lacks.
std::optional<SafetensorsHeader> add_part(const Location& location, const std::string& name,
                                          const Limits& limits, Contents& contents) {
  const size_t index = contents.catalog.files.size();
  try {
    SafetensorsHeader header = add_file(location, name, with_missing_data(limits, true), contents);
    FileEntry& file = contents.catalog.files[index];
    if (header.end_bytes > file.count_bytes) {
      file.lack = truncated_text(file.count_bytes, header.end_bytes);
      file.count_bytes = header.end_bytes;
    }
    return header;
  } catch (const Error& error) {
    if (!error.is_incomplete()) throw;
    contents.catalog.files[index].lack = error.problem();
    return std::nullopt;
  }
}

void read_single(const Location& location, const Limits& limits, Contents& contents) {
  const std::string& name = *location.only_file;
  auto header = location.named_file
                    ? add_file(location, name, with_missing_data(limits, false), contents)
                    : add_part(location, name, limits, contents);
  if (!header) return;
  contents.catalog.tensors = std::move(header->tensors);
  contents.header_metadata = std::move(header->metadata);
}

// --- several files with an index -----------------------------------------------------------------

constexpr std::string_view kIndexSuffix = ".index.json";
constexpr Foreign kOtherJson = {
    "a JSON file without a weight_map, not the index of a model in several files",
    "a *.safetensors.index.json can be opened, and so can the folder that holds one"};
constexpr Foreign kTorchIndex = {
    "the index of a model in several torch.save files",
    "they open one by one, such as {folder}/pytorch_model-00001-of-*.bin; save_pretrained of "
    "transformers writes safetensors, which open as a whole"};

// transformers writes the same kind of index for pytorch_model-00001-of-00002.bin.
void refuse_torch_index(const json& index, const std::filesystem::path& path) {
  for (const auto& [key, file] : index["weight_map"].items()) {
    if (file.is_string() && file.get<std::string>().ends_with(".bin")) {
      refuse_foreign(kTorchIndex, path);
    }
  }
}

JsonTree read_index(const Location& location, const Limits& limits, Contents& contents) {
  const std::string& name = *location.only_file;
  const auto file = open_source(location, name, name, limits);
  contents.catalog.files.push_back({name, file->size_bytes()});
  if (file->size_bytes() > limits.safetensors_header_bytes_max) {
    corrupt(name, "",
            "the index has " + std::to_string(file->size_bytes()) + " bytes, the limit is " +
                std::to_string(limits.safetensors_header_bytes_max));
  }
  JsonTree tree =
      parse_strict_json(head_of(*file, limits.safetensors_header_bytes_max),
                        {kDepthMax, [&](const std::string& key, const std::string& problem) {
                           corrupt(name, key, problem + " in the index");
                         }});
  const json& index = *tree;
  if (tree.is_cut()) throw truncated({name}, file->size_bytes());
  if (!name.ends_with(kIndexSuffix) && !(index.is_object() && index.contains("weight_map"))) {
    refuse_foreign(kOtherJson, location.folder / name);
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    corrupt(name, "weight_map", "the index is not a JSON object with a weight_map");
  }
  return tree;
}

// Tensors by file, in the order of the files' names.
std::map<std::string, std::set<std::string>> files_of(const json& index, const std::string& name) {
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [key, value] : index["weight_map"].items()) {
    if (!value.is_string()) corrupt(name, key, "its file name is not a string");
    const auto file = value.get<std::string>();
    if (!is_safe_relative(file) || file.find_first_of("/\\") != file.npos) {
      corrupt(name, key, "'" + escaped(file) + "' is not a plain file name");
    }
    files[file].insert(key);
  }
  return files;
}

// What the index says that the tensors of all files have, less what is there.
std::string missing_bytes(const json& index, const Catalog& catalog) {
  const auto metadata = index.find("metadata");
  const bool has_size = metadata != index.end() && metadata->is_object() &&
                        metadata->contains("total_size") &&
                        (*metadata)["total_size"].is_number_unsigned();
  if (!has_size) return {};
  const uint64_t total_bytes = (*metadata)["total_size"].get<uint64_t>();
  uint64_t listed_bytes = 0;
  for (const TensorEntry& tensor : catalog.tensors) listed_bytes += count_bytes(tensor);
  if (listed_bytes > total_bytes) return {};
  return "; of the " + std::to_string(total_bytes) + " bytes of tensors that the index counts, " +
         std::to_string(total_bytes - listed_bytes) + " are in files that are not here";
}

void add_indexed(SafetensorsHeader header, const std::string& file, std::set<std::string>& keys,
                 Contents& contents) {
  for (TensorEntry& tensor : header.tensors) {
    if (keys.erase(tensor.key) == 0) {
      corrupt(file, tensor.key, "is in this file, but the index does not say so");
    }
    contents.catalog.tensors.push_back(std::move(tensor));
  }
  if (!keys.empty()) corrupt(file, *keys.begin(), "is not in this file, but the index says so");
  contents.header_metadata.merge(header.metadata);
}

void read_indexed(const Location& location, const Limits& limits, Contents& contents) {
  const std::string& name = *location.only_file;
  contents.metadata_files.push_back(name);
  const JsonTree index = read_index(location, limits, contents);
  refuse_torch_index(*index, location.folder / name);
  std::optional<size_t> last_missing;
  for (auto& [file, keys] : files_of(*index, name)) {
    if (location.source->has(location.folder / file)) {
      auto header = add_part(location, file, limits, contents);
      if (header) add_indexed(std::move(*header), file, keys, contents);
      continue;
    }
    last_missing = contents.catalog.files.size();
    contents.catalog.files.push_back({file, 0, true,
                                      "is missing, with " + std::to_string(keys.size()) +
                                          (keys.size() == 1 ? " tensor" : " tensors")});
  }
  if (last_missing) {
    contents.catalog.files[*last_missing].lack += missing_bytes(*index, contents.catalog);
  }
}

// --- a part of every tensor in each file ---------------------------------------------------------

// Where the parts that a file holds lie in their tensors.
std::map<std::string, Extents> saved_offsets(const SafetensorsHeader& header,
                                             const std::string& file) {
  const auto info = header.metadata.find(std::string(kShardingInfo));
  if (info == header.metadata.end()) {
    throw Error(ErrorCode::Unsupported, {file},
                "one of several safetensors files in a folder without an index",
                "name one of the files, or the *.safetensors.index.json");
  }
  const JsonTree offsets = parse_strict_json(
      info->second, {kDepthMax, [&](const std::string& key, const std::string& problem) {
                       corrupt(file, kShardingInfo, "'" + escaped(key) + "' " + problem);
                     }});
  if (!offsets->is_object()) corrupt(file, kShardingInfo, "is not a JSON object");
  std::map<std::string, Extents> result;
  for (const auto& [key, entry] : offsets->items()) {
    if (!entry.is_object() || !entry.contains("saved_offsets") ||
        !entry["saved_offsets"].is_array()) {
      corrupt(file, key, std::string(kShardingInfo) + " has no list of saved_offsets for it");
    }
    Extents& extents = result[key];
    for (const json& offset : entry["saved_offsets"]) {
      if (!offset.is_number_unsigned()) corrupt(file, key, "an offset is not a number");
      extents.push_back(offset.get<uint64_t>());
    }
  }
  return result;
}

// Puts tensors together from their parts; the parts tell the shape.
class Assembler {
 public:
  void add(TensorEntry part, const Extents& offsets, const std::string& file) {
    if (offsets.size() != part.shape.size()) {
      corrupt(file, part.key, "its offsets and its shape differ in the number of dimensions");
    }
    const auto [place, added] = places_.emplace(part.key, tensors_.size());
    if (added) tensors_.push_back({{}, part.key, part.dtype, Extents(offsets), {}});
    TensorEntry& tensor = tensors_[place->second];
    if (tensor.dtype != part.dtype || tensor.shape.size() != offsets.size()) {
      corrupt(file, part.key,
              "has a different element type or number of dimensions in another file");
    }
    for (size_t d = 0; d < offsets.size(); ++d) {
      const auto end = checked_add(offsets[d], part.shape[d]);
      if (!end) corrupt(file, part.key, "its offsets are too large");
      tensor.shape[d] = std::max(tensor.shape[d], *end);
    }
    tensor.chunks.push_back({{offsets, part.shape}, part.chunks[0].region});
  }

  std::vector<TensorEntry> finish() {
    for (const TensorEntry& tensor : tensors_) check_part_count(tensor);
    return std::move(tensors_);
  }

 private:
  // Which file is missing the others do not say.
  static void check_part_count(const TensorEntry& tensor) {
    try {
      check_chunks(tensor);
    } catch (Error& error) {
      error.hinted("one of the files of the folder may be missing");
      throw;
    }
  }

  std::vector<TensorEntry> tensors_;
  std::map<std::string, size_t> places_;
};

void read_parts(const Location& location, const Limits& limits, Contents& contents) {
  Assembler assembler;
  for (const std::string& name : location.source->list(location.folder)) {
    if (!name.ends_with(kSafetensorsSuffix)) continue;
    auto header = add_part(location, name, limits, contents);
    if (!header) continue;
    const auto offsets = saved_offsets(*header, name);
    for (TensorEntry& tensor : header->tensors) {
      const auto found = offsets.find(tensor.key);
      if (found == offsets.end()) {
        corrupt(name, tensor.key, std::string(kShardingInfo) + " does not list it");
      }
      assembler.add(std::move(tensor), found->second, name);
    }
  }
  refuse_incomplete(contents.catalog, limits);
  contents.catalog.tensors = assembler.finish();
}

// model-00002-of-00026.safetensors: the index, with the number of files that it names. A rank's
// file says itself which part of the whole it holds.
std::optional<std::pair<std::string, uint64_t>> index_of(std::string_view name) {
  if (!name.ends_with(kSafetensorsSuffix) || name.starts_with("shard-")) return std::nullopt;
  name.remove_suffix(kSafetensorsSuffix.size());
  const size_t of = name.rfind("-of-");
  const size_t dash = of == name.npos || of == 0 ? name.npos : name.rfind('-', of - 1);
  if (dash == name.npos) return std::nullopt;
  const auto count = number_in<uint64_t>(name.substr(of + 4));
  if (!number_in<uint64_t>(name.substr(dash + 1, of - dash - 1)) || !count) return std::nullopt;
  return std::pair(std::string(name.substr(0, dash)) + std::string(kSafetensorsIndexSuffix),
                   *count);
}

// What Transformers and Accelerate call the model; other files without an index lie beside it.
constexpr std::string_view kModelFile = "model.safetensors";

// A folder that holds files of a set, and not the index that names them all.
void refuse_missing_index(const Location& location) {
  std::map<std::string, std::pair<uint64_t, uint64_t>> sets;  // by index: files here, files named
  for (const std::string& name : location.source->list(location.folder)) {
    if (name.ends_with(kSafetensorsIndexSuffix)) return;
    const auto index = index_of(name);
    if (!index || index->second < 2) continue;
    auto& [here, named] = sets[index->first];
    ++here;
    named = std::max(named, index->second);
  }
  if (sets.empty()) return;
  const auto& [name, counts] = *sets.begin();
  throw Error(ErrorCode::Corrupt, {name},
              "is missing; " + std::to_string(counts.first) + " of the " +
                  std::to_string(counts.second) + " files that it names are here",
              "the checkpoint is incomplete: copy what is missing again; a file that is named "
              "itself opens alone")
      .mark_incomplete();
}

// A u64 header length, then JSON.
bool has_safetensors_header(std::string_view head, uint64_t file_bytes) {
  if (head.size() < 9 || head[8] != '{') return false;
  ByteReader reader(std::as_bytes(std::span(head)));
  const uint64_t header_bytes = reader.u64();
  return header_bytes <= file_bytes - 8;
}

}  // namespace

bool find_safetensors_folder(const Folder& source, Location& location) {
  std::vector<std::string> files, indices;
  for (const std::string& name : source.list(location.folder)) {
    if (name.ends_with(kSafetensorsSuffix)) files.push_back(name);
    if (name.ends_with(kSafetensorsIndexSuffix)) indices.push_back(name);
  }
  location.is_index = indices.size() == 1;
  if (location.is_index) {
    location.only_file = indices[0];
  } else if (files.size() == 1) {
    location.only_file = files[0];
  } else if (std::ranges::find(files, kModelFile) != files.end()) {
    location.only_file = kModelFile;
  }
  return location.is_index || !files.empty();
}

bool find_safetensors_file(const FileHead& file, Location& location) {
  const std::string_view head = file.bytes;
  if (has_safetensors_header(head, file.count_bytes)) return true;
  location.is_index =
      file.name.ends_with(".json") && head.find_first_not_of(" \t\r\n") == head.find('{');
  return location.is_index;
}

Contents read_safetensors_contents(const Location& location, const Limits& limits) {
  Contents contents;
  if (!location.is_index && !location.named_file) refuse_missing_index(location);
  if (!location.only_file) {
    read_parts(location, limits, contents);
  } else if (location.is_index) {
    read_indexed(location, limits, contents);
  } else {
    read_single(location, limits, contents);
  }
  return contents;
}

}  // namespace ckpt
