// Format `torch_dist`: PyTorch distributed checkpoint (DCP), and what a FolderConvention puts
// around it.
//   .metadata        pickle: what is stored where (dist_metadata.cc)
//   __R.metadata     instead of it: what rank R stored, where ranks did not talk to each other
//   __R_I.distcp     torch.save archives, back to back, one per chunk or object
//   common_file      torch.save of the state that is not sharded
//   backend_file     {backend_key: "torch_dist", ...}

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/folder_convention.h>

#include "base/byte_reader.h"
#include "base/text.h"
#include "codec/pickle.h"
#include "codec/strict_json.h"
#include "format/location/location.h"
#include "format/safetensors/safetensors_header.h"
#include "format/torch/torch_save.h"
#include "format/torch_dist/dist_metadata.h"
#include "io/file.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

constexpr const char* kMetadataName = ".metadata";

// __R.metadata, which ranks write that save without talking to each other (use_collectives=False).
std::string rank_metadata_name(uint32_t rank) {
  return "__" + std::to_string(rank) + kMetadataName;
}

std::string identity(size_t tensor, const Box& box) {
  std::string text = std::to_string(tensor);
  for (const uint64_t offset : box.offsets) text += ',' + std::to_string(offset);
  for (const uint64_t size : box.sizes) text += ':' + std::to_string(size);
  return text;
}

// Puts together what the ranks say, in their order. A chunk that several ranks stored is a replica:
// the first one is kept. An object that an earlier rank has, too, may be another: it is listed as
// one of the file __R.metadata.
class DistMetadataParts {
 public:
  // Throws Corrupt, with `name` and the key, where ranks disagree about a tensor.
  void add(DistMetadata part, const std::string& name) {
    if (whole_.files.empty()) whole_.rest = std::move(part.rest);
    std::vector<uint32_t> files;
    for (std::string& file : part.files) {
      const auto next = static_cast<uint32_t>(whole_.files.size());
      const auto [place, added] = files_.emplace(file, next);
      if (added) whole_.files.push_back(std::move(file));
      files.push_back(place->second);
    }
    for (TensorEntry& tensor : part.tensors) {
      for (Chunk& chunk : tensor.chunks) chunk.region.file = files[chunk.region.file];
      add_tensor(std::move(tensor), name);
    }
    for (ObjectEntry& object : part.objects) {
      object.region->file = files[object.region->file];
      if (!objects_.insert(object.key).second) object.file = name;
      whole_.objects.push_back(std::move(object));
    }
  }
  // Throws Corrupt where chunks leave a hole, as they do when the file of a rank is missing.
  DistMetadata finish() {
    for (const TensorEntry& tensor : whole_.tensors) {
      within(rank_metadata_name(0), tensor.key, [&] { check_chunks(tensor); });
    }
    return std::move(whole_);
  }

 private:
  void add_tensor(TensorEntry tensor, const std::string& name) {
    const auto [place, added] = tensors_.emplace(tensor.key, whole_.tensors.size());
    if (added) whole_.tensors.push_back({{}, tensor.key, tensor.dtype, tensor.shape, {}});
    TensorEntry& known = whole_.tensors[place->second];
    if (known.dtype != tensor.dtype || known.shape != tensor.shape) {
      throw Error(ErrorCode::Corrupt, {name, std::nullopt, tensor.key},
                  "has a different element type or shape in the metadata of an earlier rank");
    }
    for (Chunk& chunk : tensor.chunks) {
      const bool is_new = chunks_.insert(identity(place->second, chunk.box)).second;
      if (is_new) known.chunks.push_back(std::move(chunk));
    }
  }

  DistMetadata whole_;
  TextMap<size_t> tensors_;
  TextMap<uint32_t> files_;
  TextSet objects_, chunks_;
};

constexpr size_t kHeadBytes = 9;  // the header's length and its first byte

// Where the tensors of a file start, if they all start in one place, as in a blob.
std::vector<std::optional<uint64_t>> common_starts(const Catalog& catalog) {
  std::vector<std::optional<uint64_t>> starts(catalog.files.size());
  std::vector<bool> differ(catalog.files.size());
  size_t may_be_common = starts.size();
  const auto note_difference = [&](uint32_t file) {
    if (!differ[file]) --may_be_common;
    differ[file] = true;
  };
  for (const TensorEntry& tensor : catalog.tensors) {
    if (may_be_common == 0) break;
    for (const Chunk& chunk : tensor.chunks) {
      const StorageRegion& region = chunk.region;
      auto& start = starts[region.file];
      if (start && *start != region.bytes.offset_bytes) note_difference(region.file);
      if (region.wrapping != Wrapping::TorchSave) note_difference(region.file);
      start = region.bytes.offset_bytes;
    }
  }
  for (size_t file = 0; file < starts.size(); ++file) {
    if (differ[file]) starts[file].reset();
  }
  return starts;
}

// Where JSON starts in a blob, an archive has its compression method, 0.
bool is_blob(const RandomAccess& file, uint64_t start_bytes) {
  if (start_bytes >= file.size_bytes() || file.size_bytes() - start_bytes < kHeadBytes) {
    return false;
  }
  std::byte head[kHeadBytes];
  file.read_at(start_bytes, head);
  return head[kHeadBytes - 1] == std::byte{'{'};
}

using Blob = TextMap<TensorEntry>;

Blob read_blob(const RandomAccess& file, uint32_t file_index, uint64_t start_bytes,
               const Limits& limits) {
  Blob blob;
  const ByteRange bytes{start_bytes, file.size_bytes() - start_bytes};
  for (TensorEntry& part : read_safetensors_header(file, file_index, bytes, limits).tensors) {
    std::string key = part.key;
    blob.emplace(std::move(key), std::move(part));
  }
  return blob;
}

void resolve(const TensorEntry& tensor, Blob& blob, const std::string& file, Chunk& chunk) {
  const Where where{file, chunk.region.bytes.offset_bytes, tensor.key};
  const auto found = blob.find(tensor.key);
  if (found == blob.end()) {
    throw Error(ErrorCode::Corrupt, where, "is not in the file's safetensors blob");
  }
  const TensorEntry& part = found->second;
  const ByteRange bytes = part.chunks[0].region.bytes;
  if (part.dtype != tensor.dtype || part.shape != chunk.box.sizes ||
      bytes.count_bytes != chunk.region.bytes.count_bytes) {
    throw Error(ErrorCode::Corrupt, where,
                "the file's safetensors blob and .metadata disagree on the element type or shape "
                "of this key");
  }
  chunk.region.bytes = bytes;
  chunk.region.wrapping = Wrapping::None;
  blob.erase(found);
}

// DCP folders written with SerializationFormat.SAFETENSORS: the tensors of each file lie in one
// safetensors blob behind the objects. .metadata gives the blob's start as every tensor's offset,
// and the tensor's bytes as its length. Replaces such places by the true ones. Throws Corrupt where
// a blob does not hold what .metadata says. Returns whether there was a place to replace.
bool resolve_safetensors_blobs(const Location& location, const Limits& limits, Catalog& catalog) {
  const auto starts = common_starts(catalog);
  std::vector<std::optional<Blob>> blobs(starts.size());
  for (uint32_t f = 0; f < starts.size(); ++f) {
    if (!starts[f] || !catalog.files[f].lack.empty()) continue;
    const std::string& path = catalog.files[f].path;
    const auto file = open_source(location, path, path, limits);
    if (is_blob(*file, *starts[f])) blobs[f] = read_blob(*file, f, *starts[f], limits);
  }
  const auto is_there = [](const std::optional<Blob>& blob) { return blob.has_value(); };
  if (std::ranges::none_of(blobs, is_there)) return false;
  for (TensorEntry& tensor : catalog.tensors) {
    for (Chunk& chunk : tensor.chunks) {
      auto& blob = blobs[chunk.region.file];
      if (blob) resolve(tensor, *blob, catalog.files[chunk.region.file].path, chunk);
    }
  }
  for (uint32_t f = 0; f < blobs.size(); ++f) {
    if (!blobs[f] || blobs[f]->empty()) continue;
    throw Error(ErrorCode::Corrupt, {catalog.files[f].path, *starts[f], blobs[f]->begin()->first},
                "is in the safetensors blob but not in .metadata");
  }
  return true;
}

constexpr size_t kBackendDepthMax = 16;

bool is_there(const Location& location, std::string_view name) {
  return location.source->has(location.folder / name);
}

ValueTree read_tree(const RandomAccess& file, const Limits& limits) {
  const std::string bytes = all_of(file, limits.pickle_bytes_max);
  ByteReader reader(std::as_bytes(std::span(bytes)), file.file_name());
  ValueTree tree = read_whole_pickle(reader, limits);
  if (!reader.at_end()) reader.fail("bytes follow the pickle's end");
  return tree;
}

// In one pass where the file is as real writers make it, else as a tree of values, which says what
// is wrong with it.
DistMetadata read_metadata(const Location& location, const Limits& limits) {
  const auto file = open_source(location, kMetadataName, kMetadataName, limits);
  if (auto metadata = stream_dist_metadata(*file, limits)) return std::move(*metadata);
  return interpret_dist_metadata(read_tree(*file, limits));
}

// What .metadata names.
FileEntry find_data_file(const Location& location, const std::string& name, const Limits& limits) {
  const auto count_bytes = unless_gone<uint64_t>(
      [&] { return open_source(location, name, name, limits)->size_bytes(); });
  return {name, count_bytes.value_or(0), !count_bytes};
}

// The first tensor or object that lies behind the end of a file.
Where first_behind(const Catalog& catalog, uint32_t file, uint64_t found_bytes) {
  Where where{catalog.files[file].path};
  for_each_region(catalog, [&](const StorageRegion& region, const std::string& key) {
    const uint64_t start_bytes = region.bytes.offset_bytes;
    const bool is_behind = region.file == file && region.bytes.end_bytes() > found_bytes;
    if (!is_behind || (where.offset_bytes && *where.offset_bytes <= start_bytes)) return;
    where.offset_bytes = start_bytes;
    where.key = key;
  });
  return where;
}

// Where .metadata says that the last region of each file ends.
std::vector<uint64_t> region_ends(const DistMetadata& metadata, const Catalog& catalog) {
  if (metadata.region_ends.size() == catalog.files.size()) return metadata.region_ends;
  std::vector<uint64_t> ends(catalog.files.size());
  for_each_region(catalog, [&](const StorageRegion& region, const std::string&) {
    ends[region.file] = std::max(ends[region.file], region.bytes.end_bytes());
  });
  return ends;
}

// Files that are missing, or end before the last region in them does.
void find_lacking_files(const std::vector<uint64_t>& ends, const Limits& limits, Catalog& catalog) {
  Where first;
  for (uint32_t f = 0; f < catalog.files.size(); ++f) {
    FileEntry& file = catalog.files[f];
    const uint64_t found_bytes = file.count_bytes;
    if (!file.is_missing && found_bytes >= ends[f]) continue;
    file.count_bytes = ends[f];
    file.lack = file.is_missing ? "is missing (" + std::to_string(ends[f]) + " bytes)"
                                : truncated_text(found_bytes, ends[f]);
    const bool is_first = first.file.empty() || file.path < first.file;
    if (is_first && !limits.allow_missing_data) first = first_behind(catalog, f, found_bytes);
  }
  refuse_incomplete(catalog, limits, std::move(first));
}

void check_backend(const Location& location, const Limits& limits) {
  const std::string name(location.convention->backend_file);
  const auto file = open_source(location, name, name, limits);
  const std::string text = all_of(*file, limits.small_file_bytes_max);
  const std::string field(location.convention->backend_key);
  const Where where{.file = name, .key = field};
  const JsonTree tree = parse_strict_json(
      text, {kBackendDepthMax, [&](const std::string& key, const std::string& problem) {
               throw Error(ErrorCode::Corrupt, where, "'" + escaped(key) + "' " + problem);
             }});
  const nlohmann::json& json = *tree;
  if (tree.is_cut()) throw truncated(where, text.size());
  if (!json.is_object() || !json.contains(field) || !json[field].is_string()) {
    throw Error(ErrorCode::Corrupt, where, "expected the name of the sharded backend");
  }
  const auto backend = json[field].get<std::string>();
  if (backend != "torch_dist") {
    throw Error(ErrorCode::Unsupported, where,
                "is '" + escaped(backend) + "'; expected 'torch_dist'",
                std::string(location.convention->backend_hint));
  }
}

void read_common(const Location& location, const Limits& limits, Contents& contents) {
  const std::string name(location.convention->common_file);
  if (!is_there(location, name)) return;
  if (!try_torch_save_file({location, name, name}, limits, contents)) return;
  contents.catalog.objects.push_back({name, "", std::nullopt});
}

DistMetadata read_parts(const Location& location, const Limits& limits) {
  DistMetadataParts parts;
  for (uint32_t rank = 0; is_there(location, rank_metadata_name(rank)); ++rank) {
    const std::string name = rank_metadata_name(rank);
    within(name, {}, [&] {
      const ValueTree tree = read_tree(*open_source(location, name, name, limits), limits);
      parts.add(interpret_dist_metadata(tree, true), name);
    });
  }
  return parts.finish();
}

}  // namespace

bool is_torch_dist_folder(const Folder& source, Location& location) {
  return source.has(location.folder / kMetadataName) ||
         source.has(location.folder / rank_metadata_name(0));
}

Contents read_torch_dist_contents(const Location& location, const Limits& limits) {
  Contents contents;
  contents.catalog.iteration = location.iteration;
  const FolderConvention* const convention = location.convention;
  contents.has_backend_file = convention != nullptr && is_there(location, convention->backend_file);
  if (contents.has_backend_file) {
    check_backend(location, limits);
    contents.metadata_files.emplace_back(convention->backend_file);
  }
  contents.metadata_files.push_back(kMetadataName);
  DistMetadata metadata = within(kMetadataName, {}, [&] {
    return is_there(location, kMetadataName) ? read_metadata(location, limits)
                                             : read_parts(location, limits);
  });
  for (const std::string& name : metadata.files) {
    contents.catalog.files.push_back(find_data_file(location, name, limits));
  }
  contents.catalog.tensors = std::move(metadata.tensors);
  contents.catalog.objects = std::move(metadata.objects);
  contents.dist_metadata = std::move(metadata.rest);
  const bool is_streamed = metadata.region_ends.size() == contents.catalog.files.size();
  find_lacking_files(region_ends(metadata, contents.catalog), limits, contents.catalog);
  // Read in one pass, no two regions share a byte; and all lie inside of their files now.
  const bool have_moved = resolve_safetensors_blobs(location, limits, contents.catalog);
  if (have_moved || !is_streamed) check_regions(contents.catalog);
  if (convention != nullptr) read_common(location, limits, contents);
  return contents;
}

}  // namespace ckpt
