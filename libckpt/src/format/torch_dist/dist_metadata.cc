// .metadata of torch.distributed.checkpoint, as a value tree:
//
//   Metadata.state = {state_dict_metadata: {fqn: TensorStorageMetadata | BytesStorageMetadata},
//                     planner_data, storage_data: {MetadataIndex: _StorageInfo}, storage_meta,
//                     version}
//   TensorStorageMetadata.state = {properties, size, chunks: [ChunkStorageMetadata {offsets,
//   sizes}]} TensorProperties.state      = (dtype, layout, requires_grad, memory_format,
//   pin_memory) MetadataIndex.state         = {fqn, offset?, index?}      offset is absent for
//   objects _StorageInfo.state          = {relative_path, offset, length, transform_descriptors?}
//
// MetadataIndex.index is a hint and takes no part in equality (torch: compare=False).
#include "format/torch_dist/dist_metadata.h"

#include <ckpt/error.h>

#include "base/checked_math.h"
#include "base/text.h"
#include "format/torch_dist/dist_items.h"
#include "format/values/other_dtypes.h"
#include "format/values/torch_values.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

[[noreturn]] void corrupt(std::string_view key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = std::string(key)}, std::move(problem));
}

// The instance dictionary of an object of this class.
Value fields_of(const Value& value, std::string_view class_name, std::string_view key) {
  if (!value.is(Kind::Object) || !value.callable().is(Kind::Global) ||
      value.callable().name() != class_name || !value.state()) {
    corrupt(key, "expected an object of class " + std::string(class_name) + " in .metadata");
  }
  return *value.state();
}

bool is_instance(const Value& value, std::string_view class_name) {
  return value.is(Kind::Object) && value.callable().is_global(kMetadataModule, class_name);
}

// Megatron-Core 0.15 writes a class of its own, with mcore_data beside the fields of PyTorch's.
std::string_view root_class(const Value& root) {
  const bool is_mcore =
      root.is(Kind::Object) && root.callable().is_global(kMcoreMetadataModule, "MCoreMetadata");
  return is_mcore ? "MCoreMetadata" : "Metadata";
}

uint64_t as_count(const Value& value, std::string_view key, const char* what) {
  if (!value.is(Kind::Int) || value.as_int() < 0)
    corrupt(key, std::string(what) + " is not a whole number of at least 0");
  return static_cast<uint64_t>(value.as_int());
}

bool is_torch_size(const Value& value) {
  return value.is(Kind::Object) && value.callable().is_global("torch", "Size") &&
         value.args().size() == 1 && value.args()[0].is(Kind::Tuple);
}

Extents as_counts(const Value& numbers, std::string_view key) {
  if (numbers.size() > Limits().dims_max) {
    corrupt(key, "a size or offset is of more than 64 numbers");
  }
  Extents extents;
  for (size_t i = 0; i < numbers.size(); ++i) {
    extents.push_back(as_count(numbers[i], key, "a size or offset"));
  }
  return extents;
}

// torch.Size((...)), or a plain tuple, as Megatron-FSDP writes it: torch takes both.
Extents as_size(const Value& value, std::string_view key) {
  const Value numbers = is_torch_size(value) ? value.args()[0] : value;
  if (!numbers.is(Kind::Tuple))
    corrupt(key, "a size or offset is neither a torch.Size nor a tuple");
  return as_counts(numbers, key);
}

// Of a chunk, of which torch takes a list, too.
Extents as_chunk_size(const Value& value, std::string_view key) {
  return value.is(Kind::List) ? as_counts(value, key) : as_size(value, key);
}

// torch.serialization._get_layout('torch.strided').
bool is_strided(const Value& layout) {
  return layout.is(Kind::Object) &&
         layout.callable().is_global("torch.serialization", "_get_layout") &&
         layout.args().size() == 1 && layout.args()[0].is(Kind::Str) &&
         layout.args()[0].text() == "torch.strided";
}

// What makes a place in storage_data unique: the key and, for a chunk, its offsets.
std::string place_key(std::string_view fqn, const Extents* offsets) {
  std::string text(fqn);
  text += '\0';
  if (offsets == nullptr) return text;
  text += '@';
  for (const uint64_t offset : *offsets) text += std::to_string(offset) + ',';
  return text;
}

class Interpreter {
 public:
  Interpreter(const ValueTree& tree, bool is_part)
      : root_(fields_of(tree.root(), root_class(tree.root()), {})), is_part_(is_part) {}

  DistMetadata run(const ValueTree& tree) {
    read_places();
    const Value entries = root_.at("state_dict_metadata");
    for (const auto& [key, value] : items_of(entries)) {
      if (!key.is(Kind::Str)) corrupt({}, "a key in .metadata is not a string");
      read_entry(key.text(), value);
    }
    if (!places_.empty()) {
      const std::string& left = places_.begin()->first;
      corrupt(left.substr(0, left.find('\0')),
              "storage_data lists a chunk that does not belong to a tensor or object");
    }
    result_.rest = rest_of(tree);
    return std::move(result_);
  }

 private:
  ValueTree rest_of(const ValueTree& tree) const {
    ValueTree rest;
    const NodeId fields = rest.dict();
    for (const auto& [key, value] : items_of(root_)) {
      const bool is_storage = key.is(Kind::Str) && key.text() == "storage_data";
      const bool is_entries = key.is(Kind::Str) && key.text() == "state_dict_metadata";
      const NodeId key_node = rest.copy(key);
      const NodeId node = is_storage || is_entries ? rest.dict() : rest.copy(value);
      for (size_t e = 0; is_entries && e < value.item_count(); ++e) {
        rest.set_item(node, rest.copy(value.item(e).first), rest.none());
      }
      rest.set_item(fields, key_node, node);
    }
    const Value metadata = tree.root();
    rest.set_root(rest.object(metadata.construction(), rest.copy(metadata.callable()),
                              rest.copy(metadata.args())));
    rest.set_state(rest.root().id(), fields);
    return rest;
  }

  void read_places() {
    const Value storage = root_.at("storage_data");
    for (const auto& [index, info] : items_of(storage)) {
      const Value fields = fields_of(index, "MetadataIndex", {});
      const Value fqn = fields.at("fqn");
      if (!fqn.is(Kind::Str)) corrupt({}, "the fqn of a MetadataIndex is not a string");
      const auto offset = fields.find("offset");
      const bool has_offset = offset && !offset->is_none();
      const Extents offsets = has_offset ? as_size(*offset, fqn.text()) : Extents{};
      const auto [place, added] = places_.emplace(
          place_key(fqn.text(), has_offset ? &offsets : nullptr), read_region(info, fqn.text()));
      if (!added) corrupt(fqn.text(), "storage_data lists the same chunk twice");
    }
  }

  StorageRegion read_region(const Value& info, std::string_view key) {
    const Value fields = fields_of(info, "_StorageInfo", key);
    StorageRegion region;
    region.wrapping = wrapping_of(fields.find("transform_descriptors"), key);
    region.file = file_index(fields.at("relative_path"), key);
    region.bytes = {as_count(fields.at("offset"), key, "an offset"),
                    as_count(fields.at("length"), key, "a length")};
    return region;
  }

  // [NAME/VERSION, ...] of torch.distributed.checkpoint's stream extensions; it has one, zstd.
  static Wrapping wrapping_of(const std::optional<Value>& transforms, std::string_view key) {
    if (!transforms || transforms->is_none() || transforms->size() == 0) return Wrapping::TorchSave;
    const std::string_view name = (*transforms)[0].text();
    const bool is_zstd = name == "stream.zstd/1" || name.starts_with("stream.zstd/1.");
    if (is_zstd && transforms->size() == 1) return Wrapping::ZstdTorchSave;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = std::string(key)},
                "stored with the transform '" + escaped(name) + "'" +
                    (transforms->size() > 1 ? " and others" : "") + ", which is not supported");
  }

  uint32_t file_index(const Value& path, std::string_view key) {
    if (!path.is(Kind::Str)) corrupt(key, "relative_path is not a string");
    const std::string_view name = path.text();
    if (!is_plain_file_name(name)) {
      corrupt(key, "relative_path '" + escaped(name) + "' is not a plain file name");
    }
    const auto [found, added] =
        file_indices_.emplace(std::string(name), static_cast<uint32_t>(result_.files.size()));
    if (added) result_.files.emplace_back(name);
    return found->second;
  }

  void read_entry(std::string_view key, const Value& value) {
    if (is_instance(value, "BytesStorageMetadata")) {
      result_.objects.push_back({{}, std::string(key), take_place(key, nullptr)});
    } else if (is_instance(value, "TensorStorageMetadata")) {
      result_.tensors.push_back(read_tensor(key, value));
    } else {
      corrupt(key, ".metadata describes it neither as a tensor nor as bytes");
    }
  }

  StorageRegion take_place(std::string_view key, const Extents* offsets) {
    const auto found = places_.find(place_key(key, offsets));
    if (found == places_.end()) corrupt(key, "storage_data does not list one of its chunks");
    const StorageRegion region = found->second;
    places_.erase(found);
    return region;
  }

  TensorEntry read_tensor(std::string_view key, const Value& value) {
    const Value fields = fields_of(value, "TensorStorageMetadata", key);
    TensorEntry tensor;
    tensor.key = key;
    const Value properties = fields_of(fields.at("properties"), "TensorProperties", key);
    tensor.dtype = read_dtype(properties, key);
    tensor.requires_grad = requires_grad_of(properties);
    tensor.shape = as_size(fields.at("size"), key);
    const Value chunks = fields.at("chunks");
    for (size_t i = 0; i < chunks.size(); ++i) {
      const Value chunk = fields_of(chunks[i], "ChunkStorageMetadata", key);
      Box box{as_chunk_size(chunk.at("offsets"), key), as_chunk_size(chunk.at("sizes"), key)};
      const StorageRegion region = take_place(key, &box.offsets);
      tensor.chunks.push_back({std::move(box), region});
    }
    if (!is_part_) check_chunks(tensor);
    return tensor;
  }

  DType read_dtype(const Value& fields, std::string_view key) {
    const bool named = fields.is(Kind::Dict);
    const Value dtype = named ? fields.at("dtype") : fields[0];
    const auto layout = named ? fields.find("layout") : std::optional(fields[1]);
    if (layout && !is_strided(*layout)) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = std::string(key)},
                  "its layout is not torch.strided");
    }
    if (const auto known = as_dtype(dtype)) return *known;
    within({}, std::string(key), [&] { refuse_other_dtype(dtype); });
    if (!dtype.is(Kind::Global)) corrupt(key, "the element type is not a torch.dtype");
    corrupt(key, "element type " + escaped(dtype.module()) + "." + escaped(dtype.name()) +
                     " is unknown");
  }

  Value root_;
  bool is_part_;
  DistMetadata result_;
  TextMap<StorageRegion> places_;
  TextMap<uint32_t> file_indices_;
};

}  // namespace

std::optional<DType> strided_dtype(const Value& state) {
  if (!state.is(Kind::Tuple) || state.size() != 5 || !is_strided(state[1])) return std::nullopt;
  return as_dtype(state[0]);
}

bool requires_grad_of(const Value& state) {
  std::optional<Value> flag;
  if (state.is(Kind::Dict)) flag = state.find("requires_grad");
  if (state.is(Kind::Tuple) && state.size() > 2) flag = state[2];
  return flag && flag->is(Kind::Bool) && flag->as_bool();
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

DistMetadata interpret_dist_metadata(const ValueTree& tree, bool is_part) {
  return Interpreter(tree, is_part).run(tree);
}

}  // namespace ckpt
