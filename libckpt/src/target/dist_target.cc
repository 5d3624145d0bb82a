// Writes what dist_metadata.cc reads: the archives of each rank's .distcp file and .metadata.

#include <ckpt/target.h>
#include <ckpt/torch_dist_target.h>

#include "base/text.h"
#include "base/text_map.h"
#include "codec/pickle_writer.h"

namespace ckpt {
namespace {

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";
constexpr int kMetadataProtocol = 4;  // pickle.dump's default, which FileSystemWriter uses

std::string distcp_name(uint32_t rank) { return "__" + std::to_string(rank) + "_0.distcp"; }

using Place = DistPlace;

// The .distcp files of all ranks, objects before tensors as torch writes them, and where each lies.
class FileBuilder {
 public:
  explicit FileBuilder(const DistSpec& spec) : files_(spec.rank_count), sizes_(spec.rank_count) {
    for (uint32_t rank = 0; rank < spec.rank_count; ++rank) files_[rank].path = distcp_name(rank);
    for (const DistObject& object : spec.objects) {
      if (object.place) {
        object_places_.push_back(*object.place);
        continue;
      }
      object_places_.push_back(add({"archive", object.tree, object.records}, object.rank));
    }
    for (const DistChunk& chunk : spec.chunks) {
      if (chunk.place) {
        chunk_places_.push_back(*chunk.place);
        continue;
      }
      const uint64_t bytes = element_count(chunk.box.sizes) * bytes_per_element(chunk.dtype);
      chunk_places_.push_back(
          add({"archive", BareTensor{chunk.dtype, chunk.box.sizes}, {{bytes, source_of(chunk)}}},
              chunk.rank));
    }
  }

  const std::vector<Place>& object_places() const { return object_places_; }
  const std::vector<Place>& chunk_places() const { return chunk_places_; }

  std::vector<TargetFile> take_files() {
    std::erase_if(files_, [](const TargetFile& file) { return file.archives.empty(); });
    return std::move(files_);
  }

 private:
  static RecordSource source_of(const DistChunk& chunk) {
    if (chunk.source.tensor == nullptr) return std::vector<Segment>();  // zeros
    return chunk.source;
  }

  Place add(TargetArchive archive, uint32_t rank) {
    const uint64_t bytes = archive_count_bytes(archive);
    const Place place{files_[rank].path, {sizes_[rank], bytes}};
    sizes_[rank] += bytes;
    files_[rank].archives.push_back(std::move(archive));
    return place;
  }

  std::vector<TargetFile> files_;
  std::vector<uint64_t> sizes_;
  std::vector<Place> object_places_, chunk_places_;
};

// 128 bits of FNV-1a over what is stored where: the same checkpoint gets the same id in every run.
class ContentId {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      low_ = (low_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
      high_ = (high_ ^ static_cast<uint8_t>(c)) * 0x100000001b3 + low_;
    }
  }
  std::string uuid() const {
    const std::string digits = hex(high_) + hex(low_);
    return digits.substr(0, 8) + "-" + digits.substr(8, 4) + "-" + digits.substr(12, 4) + "-" +
           digits.substr(16, 4) + "-" + digits.substr(20, 12);
  }

 private:
  uint64_t low_ = 0xcbf29ce484222325, high_ = 0x84222325cbf29ce4;
};

class MetadataBuilder {
 public:
  MetadataBuilder(const DistSpec& spec, const FileBuilder& files) : spec_(spec), files_(files) {}

  std::string run() {
    storage_ = tree_.dict();
    for (size_t i = 0; i < spec_.objects.size(); ++i) add_object(i);
    for (size_t i = 0; i < spec_.chunks.size(); ++i) add_chunk(i);
    const NodeId fields = tree_.dict();
    tree_.put(fields, "state_dict_metadata", state_dict());
    tree_.put(fields, "planner_data",
              spec_.planner_data ? tree_.copy(spec_.planner_data->root()) : tree_.none());
    tree_.put(fields, "storage_data", storage_);
    tree_.put(fields, "storage_meta", storage_meta());
    tree_.put(fields, "version", tree_.str("1.0.0"));
    tree_.set_root(instance(kMetadataModule, "Metadata", fields));
    return pickle::write(tree_, kMetadataProtocol);
  }

 private:
  NodeId instance(std::string_view module, std::string_view name, NodeId state) {
    const NodeId object =
        tree_.object(Construction::NewObj, tree_.global(module, name), tree_.tuple());
    tree_.set_state(object, state);
    return object;
  }

  void add_object(size_t i) {
    const DistObject& object = spec_.objects[i];
    const NodeId key = tree_.str(object.key);
    add_entry(object.key, key, instance(kMetadataModule, "BytesStorageMetadata", tree_.dict()));
    add_place(index_of(key, kNoNode, tree_.none()), files_.object_places()[i]);
    content_id_.add(object.key);
  }

  void add_chunk(size_t i) {
    const DistChunk& chunk = spec_.chunks[i];
    auto [entry, added] = tensors_.try_emplace(chunk.key);
    if (added) entry->second = add_tensor_entry(chunk);
    TensorNodes& tensor = entry->second;
    const NodeId offsets = add_size(tree_, chunk.box.offsets);
    const NodeId fields = tree_.dict();
    tree_.put(fields, "offsets", offsets);
    tree_.put(fields, "sizes", add_size(tree_, chunk.box.sizes));
    tree_.append(tensor.chunks, instance(kMetadataModule, "ChunkStorageMetadata", fields));
    const NodeId number = spec_.chunk_index ? tree_.integer(tensor.chunk_count) : tree_.none();
    add_place(index_of(tensor.key, offsets, number), files_.chunk_places()[i]);
    ++tensor.chunk_count;
  }

  struct TensorNodes {
    NodeId key, chunks;
    int64_t chunk_count = 0;
  };

  TensorNodes add_tensor_entry(const DistChunk& chunk) {
    const TensorNodes nodes{tree_.str(chunk.key), tree_.list()};
    const NodeId fields = tree_.dict();
    tree_.put(fields, "properties", properties(chunk));
    tree_.put(fields, "size", add_size(tree_, chunk.global_shape));
    tree_.put(fields, "chunks", nodes.chunks);
    add_entry(chunk.key, nodes.key, instance(kMetadataModule, "TensorStorageMetadata", fields));
    content_id_.add(chunk.key);
    return nodes;
  }

  void add_entry(const std::string& name, NodeId key, NodeId value) {
    places_of_entries_.emplace(name, entries_.size());
    entries_.emplace_back(key, value);
  }

  // In the order of the nested state dict where that is known, else as the entries came.
  NodeId state_dict() {
    const NodeId dict = tree_.dict();
    if (!spec_.planner_data) {
      for (const auto& [key, value] : entries_) tree_.set_item(dict, key, value);
      return dict;
    }
    const Value paths = spec_.planner_data->root();
    for (size_t i = 0; i < paths.item_count(); ++i) {
      const auto [key, value] =
          entries_[places_of_entries_.at(std::string(paths.item(i).first.text()))];
      tree_.set_item(dict, key, value);
    }
    return dict;
  }

  // (dtype, layout, requires_grad, memory_format, pin_memory)
  NodeId properties(const DistChunk& chunk) {
    if (layout_ == kNoNode) {
      layout_ =
          tree_.object(Construction::Reduce, tree_.global("torch.serialization", "_get_layout"),
                       tree_.tuple({tree_.str("torch.strided")}));
      memory_format_ =
          tree_.object(Construction::Reduce, tree_.global(kMetadataModule, "_MEM_FORMAT_ENCODING"),
                       tree_.tuple({tree_.integer(0)}));
    }
    return instance(
        kMetadataModule, "TensorProperties",
        tree_.tuple({tree_.global("torch", name(chunk.dtype)), layout_,
                     tree_.boolean(chunk.requires_grad), memory_format_, tree_.boolean(false)}));
  }

  // torch leaves `offset` out of the instance where it has its default, None.
  NodeId index_of(NodeId key, NodeId offsets, NodeId number) {
    const NodeId fields = tree_.dict();
    tree_.put(fields, "fqn", key);
    if (offsets != kNoNode) tree_.put(fields, "offset", offsets);
    tree_.put(fields, "index", number);
    return instance(kMetadataModule, "MetadataIndex", fields);
  }

  void add_place(NodeId index, const Place& place) {
    const NodeId fields = tree_.dict();
    tree_.put(fields, "relative_path", tree_.str(place.path));
    tree_.put(fields, "offset", tree_.integer(static_cast<int64_t>(place.bytes.offset_bytes)));
    tree_.put(fields, "length", tree_.integer(static_cast<int64_t>(place.bytes.count_bytes)));
    tree_.set_item(storage_, index, instance(kFilesystemModule, "_StorageInfo", fields));
    content_id_.add(place.path + "@" + std::to_string(place.bytes.offset_bytes));
  }

  NodeId storage_meta() {
    const NodeId fields = tree_.dict();
    tree_.put(fields, "checkpoint_id", tree_.none());
    tree_.put(fields, "save_id", tree_.str(content_id_.uuid()));
    tree_.put(fields, "load_id", tree_.none());
    tree_.put(fields, "modules", tree_.list());
    return instance(kMetadataModule, "StorageMeta", fields);
  }

  const DistSpec& spec_;
  const FileBuilder& files_;
  ValueTree tree_;
  NodeId storage_ = kNoNode, layout_ = kNoNode, memory_format_ = kNoNode;
  std::vector<std::pair<NodeId, NodeId>> entries_;  // key and what .metadata says of it
  TextMap<size_t> places_of_entries_;
  TextMap<TensorNodes> tensors_;
  ContentId content_id_;
};

}  // namespace

std::vector<TargetFile> make_torch_dist_files(const DistSpec& spec) {
  FileBuilder builder(spec);
  std::string metadata = MetadataBuilder(spec, builder).run();
  std::vector<TargetFile> files = builder.take_files();
  files.push_back({".metadata", {}, std::move(metadata)});
  return files;
}

}  // namespace ckpt
