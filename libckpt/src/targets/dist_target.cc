// Writes what dist_metadata.cc reads: the archives of each rank's .distcp file and .metadata.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/target.h>
#include <ckpt/torch_dist_target.h>

#include "base/text.h"
#include "codec/pickle_emitter.h"
#include "format/values/typed_key.h"
#include "targets/archive_writer.h"

namespace ckpt {
namespace {

// Where everything of a DistSpec lies, in its order.
struct DistPlaces {
  std::vector<std::string> paths;  // [rank] of what has no place of its own
  std::vector<ByteRange> objects, chunks;
};

using pickle::Emitter;
using pickle::Op;

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";
constexpr int kMetadataProtocol = 4;  // pickle.dump's default, which FileSystemWriter uses

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

// Metadata(state_dict_metadata, planner_data, storage_data, storage_meta, version) of
// torch.distributed.checkpoint.metadata, as FileSystemWriter pickles it: opcode by opcode, since a
// tree of values would take a kilobyte and more for each chunk.
class MetadataWriter {
 public:
  MetadataWriter(const DistSpec& spec, const DistPlaces& places)
      : spec_(spec), places_(places), offsets_(spec.chunks.size()) {
    for (const DistObject& object : spec.objects) add_entry(object.key, nullptr);
    for (const DistTensor& tensor : spec.tensors) add_entry(tensor.key, &tensor);
    for (uint32_t i = 0; i < spec.chunks.size(); ++i) {
      entry_of(spec.chunks[i]).chunks.push_back(i);
    }
    for (const std::string& path : places.paths) paths_.push_back(&out_.text(path));
    save_id_ = content_id();
  }

  std::string run() {
    put_metadata();
    out_.start();
    put_metadata();
    return out_.take();
  }

 private:
  // What state_dict_metadata has under a key.
  struct Entry {
    Emitter::Text* key;
    const DistTensor* tensor;  // null: an object
    std::vector<uint32_t> chunks;
    int64_t placed = 0;
  };

  void add_entry(const std::string& key, const DistTensor* tensor) {
    if (spec_.planner_data) entries_by_key_.emplace(key, entries_.size());
    entries_.push_back({&out_.text(key), tensor, {}});
  }
  Entry& entry_of(const DistChunk& chunk) { return entries_[spec_.objects.size() + chunk.tensor]; }

  // Of an object or a chunk.
  Emitter::Text& path_of(const auto& stored) {
    return stored.place ? out_.text(stored.place->path) : *paths_[stored.rank];
  }

  std::string content_id() {
    ContentId id;
    const auto add_place = [&](const auto& stored, const ByteRange& bytes) {
      id.add(std::get<2>(path_of(stored).first));
      id.add("@");
      id.add(std::to_string(bytes.offset_bytes));
    };
    for (size_t i = 0; i < spec_.objects.size(); ++i) {
      add_place(spec_.objects[i], places_.objects[i]);
      id.add(spec_.objects[i].key);
    }
    for (size_t i = 0; i < spec_.chunks.size(); ++i) {
      const Entry& entry = entry_of(spec_.chunks[i]);
      if (entry.chunks.front() == i) id.add(entry.tensor->key);
      add_place(spec_.chunks[i], places_.chunks[i]);
    }
    return id.uuid();
  }

  // --- opcodes that come together ---

  // Opcodes, text and classes, in this order.
  void put(auto&&... parts) { (put_one(parts), ...); }
  void put_one(Op op) { out_.put(op); }
  void put_one(Emitter::Text& text) { out_.put_text(text); }

  void begin_fields(Emitter::Text& of) {
    put(of);
    out_.put(Op::EmptyTuple, Op::NewObj, Op::EmptyDict, Op::Mark);
  }
  void end_fields() { out_.put(Op::SetItems, Op::Build); }

  // A list or dict of `count` elements or items, each of which `put_at` puts.
  void put_all(size_t count, Op closing, const auto& put_at) {
    put(closing == Op::Appends ? Op::EmptyList : Op::EmptyDict);
    for (size_t i = 0; i < count; ++i) {
      if (i % pickle::kBatchItems == 0) put(Op::Mark);
      put_at(i);
      if (i + 1 == count || (i + 1) % pickle::kBatchItems == 0) put(closing);
    }
  }

  void put_tuple(size_t size, const auto& put_at) {
    if (size == 0) return put(Op::EmptyTuple);
    if (size > 3) put(Op::Mark);
    for (size_t i = 0; i < size; ++i) put_at(i);
    put(size > 3 ? Op::Tuple : size == 3 ? Op::Tuple3 : size == 2 ? Op::Tuple2 : Op::Tuple1);
  }

  void put_size(const Extents& extents) {
    put(size_class_);
    put_ints(extents);
    out_.put(Op::Tuple1, Op::Reduce);
  }

  void put_ints(const Extents& extents) {
    put_tuple(extents.size(), [&](size_t i) { out_.put_int(static_cast<int64_t>(extents[i])); });
  }

  // --- Metadata ---

  void put_metadata() {
    layout_.reset();
    memory_format_.reset();
    for (Entry& entry : entries_) entry.placed = 0;
    begin_fields(out_.global(kMetadataModule, "Metadata"));
    put(out_.text("state_dict_metadata"));
    put_state_dict();
    put(out_.text("planner_data"));
    spec_.planner_data ? put_planner_data() : put(Op::None);
    put(out_.text("storage_data"));
    put_storage_data();
    put(out_.text("storage_meta"));
    put_storage_meta();
    put(out_.text("version"), out_.text("1.0.0"));
    if (!spec_.typed_paths.empty()) {
      put(out_.text(TypedPaths::kAttribute));
      out_.put_bytes(spec_.typed_paths, false);
    }
    put_mcore_data();
    end_fields();
    put(Op::Stop);
  }

  void put_mcore_data() {
    const auto is_cut = [](const DistTensor& tensor) { return !tensor.unflattened.empty(); };
    if (std::ranges::none_of(spec_.tensors, is_cut)) return;
    put(out_.text("mcore_data"));
    out_.put(Op::EmptyDict, Op::Mark);
    for (const Entry& entry : entries_) {
      if (entry.tensor == nullptr || !is_cut(*entry.tensor)) continue;
      put(*entry.key, Op::EmptyDict, Op::Mark, out_.text("nd_reformulated_orig_global_shape"));
      put_ints(entry.tensor->unflattened);
      put(Op::SetItems);
    }
    put(Op::SetItems);
  }

  // In the order of the nested state dict where that is known, else as the entries came.
  void put_state_dict() {
    const auto paths =
        spec_.planner_data ? std::optional(spec_.planner_data->root()) : std::nullopt;
    put_all(paths ? paths->item_count() : entries_.size(), Op::SetItems,
            [&](size_t i) { put_entry(paths ? entry_of(paths->item(i).first) : entries_[i]); });
  }

  const Entry& entry_of(const Value& key) const { return entries_[entries_by_key_.at(key.text())]; }

  void put_entry(const Entry& entry) {
    put(*entry.key);
    if (entry.tensor == nullptr) {
      return put(bytes_class_, Op::EmptyTuple, Op::NewObj, Op::EmptyDict, Op::Build);
    }
    begin_fields(tensor_class_);
    put(out_.text("properties"));
    put_properties(*entry.tensor);
    put(out_.text("size"));
    put_size(entry.tensor->shape);
    put(out_.text("chunks"));
    put_all(entry.chunks.size(), Op::Appends, [&](size_t i) { put_chunk(entry.chunks[i]); });
    end_fields();
  }

  void put_chunk(uint32_t chunk) {
    const Box& box = spec_.chunks[chunk].box;
    begin_fields(chunk_class_);
    put(offsets_name_);
    put_size(box.offsets);
    offsets_[chunk] = out_.remember();
    put(sizes_name_);
    put_size(box.sizes);
    end_fields();
  }

  // (dtype, layout, requires_grad, memory_format, pin_memory)
  void put_properties(const DistTensor& tensor) {
    put(out_.global(kMetadataModule, "TensorProperties"), Op::EmptyTuple, Op::NewObj, Op::Mark);
    put(out_.global("torch", name(tensor.dtype)));
    put_call(layout_, [&] {
      put(out_.global("torch.serialization", "_get_layout"), out_.text("torch.strided"));
    });
    put(tensor.requires_grad ? Op::NewTrue : Op::NewFalse);
    put_call(memory_format_, [&] {
      put(out_.global(kMetadataModule, "_MEM_FORMAT_ENCODING"));
      out_.put_int(0);
    });
    put(Op::NewFalse, Op::Tuple, Op::Build);
  }

  // A call with one argument, that all tensors share.
  template <class PutBoth>
  void put_call(std::optional<uint32_t>& memo_index, PutBoth put_both) {
    if (memo_index) return out_.get(*memo_index);
    put_both();
    put(Op::Tuple1, Op::Reduce);
    if (spec_.tensors.size() > 1) memo_index = out_.remember();
  }

  void put_planner_data() {
    const Value paths = spec_.planner_data->root();
    put_all(paths.item_count(), Op::SetItems, [&](size_t i) {
      put(out_.text(paths.item(i).first.text()));
      const Value steps = paths.item(i).second;
      put_tuple(steps.size(), [&](size_t s) {
        steps[s].is(Kind::Int) ? out_.put_int(steps[s].as_int()) : put(out_.text(steps[s].text()));
      });
    });
  }

  void put_storage_data() {
    const size_t objects = spec_.objects.size();
    put_all(objects + spec_.chunks.size(), Op::SetItems, [&](size_t i) {
      if (i < objects) {
        put_index_of_object(i);
        put_place(places_.objects[i], path_of(spec_.objects[i]));
      } else {
        put_index_of_chunk(i - objects);
        put_place(places_.chunks[i - objects], path_of(spec_.chunks[i - objects]));
      }
    });
  }

  // torch leaves `offset` out of the instance where it has its default, None.
  void put_index_of_object(size_t object) {
    begin_fields(index_class_);
    put(fqn_name_, *entries_[object].key, index_name_, Op::None);
    end_fields();
  }

  void put_index_of_chunk(size_t chunk) {
    Entry& entry = entry_of(spec_.chunks[chunk]);
    begin_fields(index_class_);
    put(fqn_name_, *entry.key, offset_name_);
    out_.get(offsets_[chunk]);
    put(index_name_);
    spec_.chunk_index ? out_.put_int(entry.placed++) : put(Op::None);
    end_fields();
  }

  void put_place(const ByteRange& bytes, Emitter::Text& path) {
    begin_fields(place_class_);
    put(path_name_, path, offset_name_);
    out_.put_int(static_cast<int64_t>(bytes.offset_bytes));
    put(length_name_);
    out_.put_int(static_cast<int64_t>(bytes.count_bytes));
    end_fields();
  }

  void put_storage_meta() {
    begin_fields(out_.global(kMetadataModule, "StorageMeta"));
    put(out_.text("checkpoint_id"), Op::None);
    put(out_.text("save_id"), out_.text(save_id_));
    put(out_.text("load_id"), Op::None);
    put(out_.text("modules"), Op::EmptyList);
    end_fields();
  }

  const DistSpec& spec_;
  const DistPlaces& places_;
  Emitter out_{kMetadataProtocol};
  std::vector<Entry> entries_;                         // objects, then tensors
  std::map<std::string_view, size_t> entries_by_key_;  // where planner_data orders them
  std::vector<uint32_t> offsets_;                      // [chunk] their place in the memo
  std::vector<Emitter::Text*> paths_;                  // [rank]
  std::optional<uint32_t> layout_, memory_format_;     // places in the memo
  std::string save_id_;
  // What is put for each chunk.
  Emitter::Text &size_class_ = out_.global("torch", "Size"),
                &bytes_class_ = out_.global(kMetadataModule, "BytesStorageMetadata"),
                &tensor_class_ = out_.global(kMetadataModule, "TensorStorageMetadata"),
                &chunk_class_ = out_.global(kMetadataModule, "ChunkStorageMetadata"),
                &index_class_ = out_.global(kMetadataModule, "MetadataIndex"),
                &place_class_ = out_.global(kFilesystemModule, "_StorageInfo"),
                &offsets_name_ = out_.text("offsets"), &sizes_name_ = out_.text("sizes"),
                &fqn_name_ = out_.text("fqn"), &offset_name_ = out_.text("offset"),
                &index_name_ = out_.text("index"), &path_name_ = out_.text("relative_path"),
                &length_name_ = out_.text("length");
};

uint64_t bytes_of(const DistSpec& spec, const DistChunk& chunk) {
  return element_count(chunk.box.sizes) * bytes_per_element(spec.tensors[chunk.tensor].dtype);
}

// Where everything lies: in the .distcp files of all ranks, objects before tensors as torch writes
// them, unless it has a place already.
DistPlaces places_of(const DistSpec& spec) {
  DistPlaces places;
  for (uint32_t rank = 0; rank < spec.rank_count; ++rank) {
    places.paths.push_back("__" + std::to_string(rank) + "_0.distcp");
  }
  ArchiveLayouts layouts;
  std::vector<uint64_t> sizes(spec.rank_count);
  const auto add = [&](const TargetArchive& archive, uint32_t rank) {
    const uint64_t bytes = layouts.of(archive).count_bytes;
    sizes[rank] += bytes;
    return ByteRange{sizes[rank] - bytes, bytes};
  };
  for (const DistObject& object : spec.objects) {
    places.objects.push_back(object.place
                                 ? object.place->bytes
                                 : add({"archive", object.tree, object.records}, object.rank));
  }
  TargetArchive bare{"archive", {}, {{}}};
  places.chunks.reserve(spec.chunks.size());
  for (const DistChunk& chunk : spec.chunks) {
    bare.content = BareTensor{spec.tensors[chunk.tensor].dtype, chunk.box.sizes};
    bare.records[0].count_bytes = bytes_of(spec, chunk);
    places.chunks.push_back(chunk.place ? chunk.place->bytes : add(bare, chunk.rank));
  }
  return places;
}

// Takes what the files hold out of `spec`.
std::vector<TargetFile> take_files(DistSpec& spec, const std::vector<std::string>& paths) {
  std::vector<TargetFile> files(spec.rank_count);
  std::vector<size_t> counts(spec.rank_count);
  for (const DistObject& object : spec.objects) counts[object.rank] += !object.place;
  for (const DistChunk& chunk : spec.chunks) counts[chunk.rank] += !chunk.place;
  for (uint32_t rank = 0; rank < spec.rank_count; ++rank) {
    files[rank].path = paths[rank];
    files[rank].archives.reserve(counts[rank]);
  }
  for (DistObject& object : spec.objects) {
    if (object.place) continue;
    files[object.rank].archives.push_back(
        {"archive", std::move(object.tree), std::move(object.records)});
  }
  for (; !spec.chunks.empty(); spec.chunks.pop_front()) {
    DistChunk& chunk = spec.chunks.front();
    if (chunk.place) continue;
    const uint64_t bytes = bytes_of(spec, chunk);
    BareTensor tensor{spec.tensors[chunk.tensor].dtype, std::move(chunk.box.sizes)};
    files[chunk.rank].archives.push_back({"archive", std::move(tensor), {}});
    files[chunk.rank].archives.back().records.push_back({bytes, std::move(chunk.source)});
  }
  std::erase_if(files, [](const TargetFile& file) { return file.archives.empty(); });
  return files;
}

}  // namespace

std::vector<TargetFile> make_torch_dist_files(DistSpec spec) {
  DistPlaces places = places_of(spec);
  std::string metadata = MetadataWriter(spec, places).run();
  places.chunks = std::vector<ByteRange>();
  std::vector<TargetFile> files = take_files(spec, places.paths);
  files.push_back({".metadata", {}, std::move(metadata)});
  return files;
}

}  // namespace ckpt
