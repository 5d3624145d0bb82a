#include "targets/archive_writer.h"

#include <algorithm>

#include <ckpt/document.h>
#include <ckpt/error.h>

#include "codec/pickle.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

constexpr size_t kIdDigits = 40;

// In the order in which torch.save writes them; the storages stand between byteorder and version.
constexpr std::string_view kFormatVersion = "1";
constexpr std::string_view kStorageAlignment = "64";
constexpr std::string_view kByteOrder = "little";
constexpr std::string_view kVersion = "3\n";

std::string pickle_of(const TargetArchive& archive) {
  if (const auto* tensor = std::get_if<BareTensor>(&archive.content)) {
    if (archive.records.size() != 1) {
      throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = archive.name},
                  "an archive of one tensor needs one record, not " +
                      std::to_string(archive.records.size()));
    }
    ValueTree tree;
    tree.set_root(add_tensor(tree, tensor->dtype, tensor->shape, "0"));
    return pickle::write(tree, kArchivePickleProtocol);
  }
  if (const auto* header = std::get_if<RawHeader>(&archive.content)) return header->bytes;
  return pickle::write(*std::get<std::shared_ptr<const ValueTree>>(archive.content),
                       kArchivePickleProtocol);
}

// FNV-1a, 64 bits (Fowler, Noll, Vo): spreads content over the serialization id.
class Fnv1a {
 public:
  void add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<uint8_t>(c));
  }
  void add(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) add_byte(static_cast<uint8_t>(value >> shift));
  }
  uint64_t value() const { return value_; }

 private:
  void add_byte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3; }
  uint64_t value_ = 0xCBF29CE484222325;
};

std::string digits(uint64_t value, size_t width) {
  const std::string text = std::to_string(value);
  return std::string(width - text.size(), '0') + text;
}

constexpr size_t kShapesMax = 4096;  // of a file that has as many shapes as chunks

}  // namespace

ArchiveImage::ArchiveImage(const TargetArchive& archive) : pickle_(pickle_of(archive)) {
  std::vector<uint64_t> record_bytes;
  for (const TargetRecord& record : archive.records) record_bytes.push_back(record.count_bytes);
  if (!std::holds_alternative<RawHeader>(archive.content)) {
    lay_out_archive(archive.name, record_bytes);
    return;
  }
  layout_ = zip::Layout(zip::Layout::Frame::None);
  layout_.add({}, pickle_.size());
  for (size_t m = 1; m < kFirstRecord; ++m) layout_.add({}, 0);
  for (const uint64_t bytes : record_bytes) layout_.add({}, bytes);
  for (size_t m = kFirstRecord; m < kFixedMemberCount; ++m) layout_.add({}, 0);
}

ArchiveImage::ArchiveImage(const std::string& name, std::string pickle,
                           std::span<const uint64_t> record_bytes)
    : pickle_(std::move(pickle)) {
  lay_out_archive(name, record_bytes);
}

void ArchiveImage::lay_out_archive(const std::string& name,
                                   std::span<const uint64_t> record_bytes) {
  const std::string folder = name + "/";
  layout_.add(folder + "data.pkl", pickle_.size());
  layout_.add(folder + ".format_version", kFormatVersion.size());
  layout_.add(folder + ".storage_alignment", kStorageAlignment.size());
  layout_.add(folder + "byteorder", kByteOrder.size());
  for (size_t i = 0; i < record_bytes.size(); ++i) {
    layout_.add(folder + "data/" + std::to_string(i), record_bytes[i]);
  }
  layout_.add(folder + "version", kVersion.size());
  layout_.add(folder + ".data/serialization_id", kIdDigits);
}

std::string ArchiveImage::serialization_id(std::span<const uint32_t> crcs) const {
  if (layout_.frame() == zip::Layout::Frame::None) return {};
  Fnv1a structure;
  Fnv1a content;
  for (size_t i = 0; i < id_member(); ++i) {
    structure.add(place(i).name);
    structure.add(place(i).count_bytes);
    content.add(crcs[i]);
  }
  return digits(structure.value(), kIdDigits / 2) + digits(content.value(), kIdDigits / 2);
}

uint64_t ArchiveImage::closing_offset_bytes() const {
  return layout_.frame() == zip::Layout::Frame::None ? layout_.count_bytes()
                                                     : place(id_member()).header_offset_bytes;
}

std::string_view ArchiveImage::fixed_content(size_t member) const {
  if (place(member).count_bytes == 0) return {};
  switch (member) {
    case 0: return pickle_;
    case 1: return kFormatVersion;
    case 2: return kStorageAlignment;
    case 3: return kByteOrder;
    default: return kVersion;
  }
}

ArchiveLayout archive_layout(const TargetArchive& archive) {
  const ArchiveImage image(archive);
  ArchiveLayout layout;
  layout.records.reserve(image.record_count());
  for (size_t i = 0; i < image.record_count(); ++i) {
    const zip::Place& place = image.place(ArchiveImage::member_of(i));
    layout.records.push_back({place.data_offset_bytes, place.count_bytes});
  }
  layout.closing_offset_bytes = image.closing_offset_bytes();
  layout.count_bytes = image.layout().count_bytes();
  return layout;
}

const ArchiveLayout& ArchiveLayouts::of(const TargetArchive& archive) {
  const auto* const bare = std::get_if<BareTensor>(&archive.content);
  if (bare == nullptr || archive.records.size() != 1) return of_tree(archive);
  if (of_bare_tensors_.size() >= kShapesMax) of_bare_tensors_.clear();
  const BareKey key{archive.records[0].count_bytes, bare->dtype, bare->shape, archive.name};
  const auto found = of_bare_tensors_.find(key);
  if (found != of_bare_tensors_.end()) return found->second;
  return of_bare_tensors_.emplace(key, archive_layout(archive)).first->second;
}

const ArchiveLayout& ArchiveLayouts::of_tree(const TargetArchive& archive) {
  const auto* const shared = std::get_if<std::shared_ptr<const ValueTree>>(&archive.content);
  const ValueTree* const tree = shared && archive.records.empty() ? shared->get() : nullptr;
  if (tree != nullptr && tree == tree_of_other_ && archive.name == name_of_other_) return other_;
  other_ = archive_layout(archive);
  tree_of_other_ = tree;
  name_of_other_ = archive.name;
  return other_;
}

NodeId ArchiveBuilder::add_tensor(DType dtype, const Extents& shape, RecordSource source) {
  const std::string key = std::to_string(records_.size());
  records_.push_back({element_count(shape) * bytes_per_element(dtype), std::move(source)});
  return ckpt::add_tensor(tree_, dtype, shape, key);
}

NodeId ArchiveBuilder::carry(const Value& value, const Document& document) {
  const NodeId copied = tree_.copy(value);
  change_storages(tree_, copied, document, [&](const StorageRecord* storage, auto& parts) {
    if (parts.empty()) {
      throw Error(ErrorCode::Corrupt, {}, "a persistent ID does not name a storage");
    }
    if (storage == nullptr) {
      throw Error(ErrorCode::Corrupt, {{}, {}, std::string(tree_.value(parts[2]).text())},
                  "the archive has no storage of this name");
    }
    const auto [carried, added] = carried_.try_emplace({&document, storage->key}, records_.size());
    if (added) {
      records_.push_back({storage->region.bytes.count_bytes, StorageSource{storage->region}});
    }
    parts[2] = tree_.str(std::to_string(carried->second));
  });
  return copied;
}

TargetArchive ArchiveBuilder::finish(std::string name, NodeId root) {
  tree_.set_root(root);
  carried_.clear();
  return {std::move(name), std::make_shared<const ValueTree>(std::exchange(tree_, ValueTree())),
          std::exchange(records_, {})};
}

Document ArchiveBuilder::finish_document(NodeId root) {
  tree_.set_root(root);
  carried_.clear();
  Document document{std::exchange(tree_, ValueTree()), {}};
  for (size_t i = 0; i < records_.size(); ++i) {
    document.storages.push_back(
        {std::to_string(i), std::get<StorageSource>(records_[i].source).region});
  }
  records_.clear();
  std::ranges::sort(document.storages, {}, &StorageRecord::key);
  return document;
}

}  // namespace ckpt
