#include "format/joined/joined_state.h"

#include <algorithm>

#include <ckpt/error.h>

#include "codec/crc32.h"
#include "codec/pickle.h"
#include "format/torch/torch_save.h"
#include "format/values/torch_values.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

constexpr std::string_view kTorchSuffix = ".pt";
constexpr char kJoinedMark = '=';                // of a storage that is a tensor in parts
constexpr uint64_t kComparedBytesMax = 1 << 20;  // of a storage without a checksum

std::optional<std::string> content_of(const StorageRegion& region, const RandomAccess* file) {
  const std::string size = "-" + std::to_string(region.bytes.count_bytes);
  if (region.crc32.value_or(0) != 0) return hex(*region.crc32) + size;
  if (file == nullptr || region.bytes.count_bytes > kComparedBytesMax) return std::nullopt;
  std::vector<std::byte> bytes(region.bytes.count_bytes);
  file->read_at(region.bytes.offset_bytes, bytes);
  return hex(crc32(bytes)) + size;
}

}  // namespace

NodeId JoinedState::add(TensorEntry tensor) {
  const std::string key = kJoinedMark + std::to_string(tensors_.size());
  const NodeId node = add_tensor(tree(), tensor.dtype, tensor.shape, key);
  tensors_.push_back(std::move(tensor));
  return node;
}

NodeId JoinedState::carry(const Value& value, const Document& document, const std::string& prefix) {
  const NodeId copied = tree().copy(value);
  change_storages(tree(), copied, document, [&](const StorageRecord* storage, auto& parts) {
    if (storage == nullptr) {
      throw Error(ErrorCode::Corrupt, {}, "a persistent ID does not name a storage");
    }
    const std::string name = prefix + storage->key;
    if (storages_.insert(name).second) document_.storages.push_back({name, storage->region});
    parts[2] = tree().str(name);
  });
  return copied;
}

bool JoinedState::is_whole(const TensorEntry& tensor) {
  try {
    check_chunks(tensor);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void JoinedState::finish(NodeId root, Contents& contents) {
  tree().set_root(root);
  std::ranges::sort(document_.storages, {}, &StorageRecord::key);
  Catalog& catalog = contents.catalog;
  catalog.tensors.clear();
  catalog.objects.clear();
  for (const TensorAt& at : tensors_in(document_)) {
    if (at.view.storage_key.empty() || at.view.storage_key[0] != kJoinedMark) {
      catalog.tensors.push_back(make_tensor_entry(document_, at, ""));
      continue;
    }
    TensorEntry tensor = tensors_.at(std::stoul(at.view.storage_key.substr(1)));
    tensor.key = at.pointer;
    tensor.key_kind = at.key_kind;
    check_shape(tensor.shape);
    check_chunks(tensor);
    document_.joined.emplace(at.view.storage_key, tensor.chunks);
    catalog.tensors.push_back(std::move(tensor));
  }
  for (RootObject& object : root_objects(document_)) {
    catalog.objects.push_back({"", std::move(object.pointer), std::nullopt});
  }
  contents.documents.clear();
  contents.documents.emplace(kJoinedDocument, std::move(document_));
}

std::optional<std::string> content_of(const Value& value, const Document& document,
                                      const RandomAccess* file) {
  ValueTree tree;
  tree.set_root(tree.copy(value));
  bool is_known = true;
  change_storages(tree, 0, document, [&](const StorageRecord* storage, auto& parts) {
    const bool is_of_file = is_known && storage != nullptr;
    const auto content = is_of_file ? content_of(storage->region, file) : std::nullopt;
    is_known = content.has_value();
    if (is_known) parts[2] = tree.str(*content);
    if (is_known) parts[3] = tree.none();  // the device
  });
  return is_known ? std::optional(pickle::write(tree, 4)) : std::nullopt;
}

void set_lack(Catalog& catalog, const std::string& file, std::string lack) {
  const auto found = std::ranges::find(catalog.files, file, &FileEntry::path);
  if (found != catalog.files.end() && found->lack.empty()) found->lack = std::move(lack);
}

void find_renamed_files(const Location& location, const Limits& limits, Catalog& catalog) {
  for (FileEntry& file : catalog.files) {
    if (!file.lack.empty() || !file.path.ends_with(kTorchSuffix)) continue;
    const auto opened = open_source(location, file.path, file.path, limits);
    if (head_of(*opened, 2) != "PK") continue;
    const std::string saved = name_when_saved(*opened, file.path, limits);
    if (!saved.empty()) file.lack = "was saved as " + escaped(saved);
  }
}

bool is_missing(const Location& location, const std::string& name, Contents& contents) {
  if (location.source->has(location.folder / name)) return false;
  contents.catalog.files.push_back({name, 0, true, "is missing"});
  return true;
}

}  // namespace ckpt
