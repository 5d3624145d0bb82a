#include "format/joined/rank_metadata.h"

#include <algorithm>
#include <array>

#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "base/text.h"
#include "codec/pickle.h"
#include "codec/strict_json.h"
#include "format/safetensors/safetensors_header.h"
#include "format/values/nesting.h"
#include "format/values/torch_values.h"
#include "io/directory.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

constexpr uint64_t kRanksMaxStated = 1 << 20;
constexpr uint64_t kItemTextBytesMax = 16 << 20;
constexpr size_t kMeshDimsMaxStated = 16;
constexpr size_t kPathDepthMax = 8;

// ["model", "layers.0.weight"], as a text.
nlohmann::json path_in(const std::string& text) {
  const auto refuse = [&](const std::string&, const std::string& problem) {
    throw Error(ErrorCode::Corrupt, {.file = kRankMetadata, .key = text}, problem);
  };
  return std::move(*parse_strict_json(text, {kPathDepthMax, refuse}));
}

// A key of a mapping by rank: 0, or "0".
std::optional<uint64_t> rank_in(const Value& key) {
  if (key.is(Kind::Int)) return static_cast<uint64_t>(key.as_int());
  return number_in<uint64_t>(key.text());
}

std::vector<std::byte> all_bytes_of(const OpenedFile& file, const std::string& name,
                                    uint64_t most) {
  if (file.size_bytes() > most) {
    throw Error(ErrorCode::Unsupported, {.file = name, .key = {}},
                "has more than " + std::to_string(most) + " bytes, which are read at once");
  }
  std::vector<std::byte> bytes(file.size_bytes());
  file.read_at(0, bytes);
  return bytes;
}

}  // namespace

bool holds_rank_metadata(const Folder& source, const Location& location) {
  return source.has(location.folder / kRankMetadata);
}

void RankMetadata::corrupt(const std::string& key, std::string problem) const {
  throw Error(ErrorCode::Corrupt, {.file = kRankMetadata, .key = key}, std::move(problem));
}

void RankMetadata::refuse(const std::string& key, std::string problem) const {
  throw Error(ErrorCode::Unsupported, {.file = kRankMetadata, .key = key}, std::move(problem));
}

RankMetadata::RankMetadata(const Location& location, const Limits& limits, Contents& contents)
    : location_(location), limits_(limits) {
  const auto file = open_source(location, kRankMetadata, kRankMetadata, limits);
  const std::vector<std::byte> bytes = all_bytes_of(*file, kRankMetadata, limits.pickle_bytes_max);
  ByteReader reader(bytes, kRankMetadata);
  const ValueTree tree = read_whole_pickle(reader, limits);
  const Value root = tree.root();
  contents.metadata_files.push_back(kRankMetadata);
  const auto ranks = root.is(Kind::Dict) ? root.find("world_size") : std::nullopt;
  if (!ranks || !ranks->is(Kind::Int) || !root.find("metadata")) {
    refuse("", "does not hold what torch_checkpointing writes");
  }
  if (ranks->as_int() < 1 || static_cast<uint64_t>(ranks->as_int()) > kRanksMaxStated) {
    corrupt("world_size", "is not a number of ranks");
  }
  ranks_ = static_cast<uint64_t>(ranks->as_int());
  const auto version = root.find("version");
  version_ = version && version->is(Kind::Str) ? std::string(version->text()) : "1.0";
  if (version_ == "1.0") {
    read_version_1(root);
  } else if (version_ == "2.0") {
    read_version_2(root);
  } else {
    refuse("version", "is " + escaped(version_) + "; 1.0 and 2.0 are read");
  }
  add_other_items();
}

std::string RankMetadata::words() const {
  return "torch_checkpointing " + version_ + ", files of " + std::to_string(ranks_) +
         (ranks_ == 1 ? " rank" : " ranks");
}

RankItem& RankMetadata::item_called(const std::string& name) {
  const auto found = std::ranges::find(items_, name, &RankItem::name);
  if (found != items_.end()) return *found;
  RankItem& item = items_.emplace_back(name);
  for (uint64_t rank = 0; rank < ranks_; ++rank) {
    item.files.push_back(name + "_" + std::to_string(rank) + ".pt");
  }
  return item;
}

// {'metadata': {'["model","w"]': [group, ...]}, 'rank_to_layout_info_mappings': {0: {'model':
// ...}}}
void RankMetadata::read_version_1(const Value& root) {
  const auto files = root.find("rank_to_layout_info_mappings");
  if (!files || !files->is(Kind::Dict)) corrupt("rank_to_layout_info_mappings", "is missing");
  for (const auto& [rank, items] : items_of(*files)) {
    const auto number = rank_in(rank);
    if (!number) corrupt("rank_to_layout_info_mappings", "names files of no rank");
    for (const auto& [item, layout] : items_of(items)) {
      read_files(std::string(item.text()), *number, layout);
    }
  }
  const Value metadata = root.at("metadata");
  for (const auto& [path, groups] : items_of(metadata)) {
    const auto steps = path_in(std::string(path.text()));
    const bool is_path = steps.is_array() && !steps.empty() && steps[0].is_string();
    if (!is_path) corrupt(std::string(path.text()), "is not a path of an item");
    read_groups(steps[0].get<std::string>(), path, 1, groups);
  }
}

// {'metadata': {'model': {'nested_path_to_metadata': {'["w"]': [group, ...]},
//                         'rank_to_layout_info': {0: {'file_path', 'serialization_format'}}}}}
void RankMetadata::read_version_2(const Value& root) {
  const Value metadata = root.at("metadata");
  for (const auto& [key, item] : items_of(metadata)) {
    const std::string name(key.text());
    const Value files = item.at("rank_to_layout_info");
    if (files.item_count() != ranks_) {
      corrupt(name, "names files of " + std::to_string(files.item_count()) + " ranks, there are " +
                        std::to_string(ranks_));
    }
    for (const auto& [rank, layout] : items_of(files)) {
      const auto number = rank_in(rank);
      if (!number) corrupt(name, "names a file of no rank");
      read_files(name, *number, layout);
    }
    for (const auto& [path, groups] : items_of(item.at("nested_path_to_metadata"))) {
      read_groups(name, path, 0, groups);
    }
  }
}

// `first`: the step behind the item.
void RankMetadata::read_groups(const std::string& item, const Value& path, size_t first,
                               const Value& groups) {
  const std::string text(path.text());
  const auto steps = path_in(text);
  if (!steps.is_array()) corrupt(text, "is not a path in an item");
  std::string key = item;
  for (size_t i = first; i < steps.size(); ++i) {
    key += "." + (steps[i].is_string() ? steps[i].get<std::string>() : steps[i].dump());
  }
  item_called(item);
  const auto [at, is_new] = layouts_.emplace(key, Layout());
  if (!is_new) refuse(text, "is one of two paths whose steps make one name");
  if (!groups.is(Kind::List) || groups.size() == 0) corrupt(text, "is on no rank");
  for (size_t i = 0; i < groups.size(); ++i) read_group(groups[i], item, text, at->second);
}

void RankMetadata::read_group(const Value& group, const std::string& item, const std::string& key,
                              Layout& layout) {
  const Value packed = group.at("sharding_metadata"), data = packed.at("data");
  const auto shape = sizes_in(data.at("global_shape"));
  const std::string_view type = data.at("dtype").text();
  const auto dtype = dtype_named(type.starts_with("torch.") ? type.substr(6) : type);
  if (!shape || !dtype) refuse(key, "has a type or shape that is not read");
  check_shape(*shape);
  if (layout.is_known && (layout.shape != *shape || layout.dtype != *dtype)) {
    corrupt(key, "has one shape or type on some ranks and another on others");
  }
  layout.is_known = true;
  layout.shape = *shape;
  layout.dtype = *dtype;
  const auto ranks = sizes_in(group.at("ranks"));
  if (!ranks) corrupt(key, "is on ranks that are not numbers");
  for (const uint64_t rank : *ranks) {
    if (rank >= ranks_) corrupt(key, "is on rank " + std::to_string(rank) + ", which is not there");
    holders_[item].insert(rank);
  }
  item_ = item;
  group_ranks_ = {ranks->begin(), ranks->end()};
  const std::string_view form = packed.at("type").text();
  if (form == "default_tensor_v1") return read_shards(data, key, layout);
  if (form == "DTensorShardingMetadata") return read_mesh(data, key, layout);
  refuse(key, "is described by '" + escaped(form) + "', which is not read");
}

// Where the tensor that a rank has lies in the whole.
void RankMetadata::read_shards(const Value& data, const std::string& key, Layout& layout) {
  const Value offsets = data.at("global_offsets"), inner = data.at("local_offsets");
  const Value sizes = data.at("local_sizes");
  layout.is_cut = true;
  if (inner.size() != offsets.size() || sizes.size() != offsets.size()) {
    corrupt(key, "does not say the same number of shards everywhere");
  }
  std::vector<Layout::Shard> shards;
  for (size_t shard = 0; shard < offsets.size(); ++shard) {
    const auto begin = sizes_in(offsets[shard]), local = sizes_in(inner[shard]);
    const auto count = sizes_in(sizes[shard]);
    const bool is_inside = begin && local && count && local->size() == begin->size() &&
                           lies_inside({*begin, *count}, layout.shape);
    if (!is_inside) corrupt(key, "has a shard outside of its shape");
    shards.push_back({{*begin, *count}, {*local, *count}});
  }
  for (const uint64_t rank : group_ranks_) layout.shards[rank] = shards;
}

void RankMetadata::read_mesh(const Value& data, const std::string& key, Layout& layout) {
  const Value spec = data.at("mesh_spec"), placed = data.at("placements");
  const auto mesh = sizes_in(spec.at("mesh_shape")), places = sizes_in(spec.at("mesh_data"));
  if (!mesh || !places || mesh->empty() || mesh->size() > kMeshDimsMaxStated ||
      placed.size() != mesh->size() || std::ranges::find(*mesh, 0) != mesh->end() ||
      element_count(*mesh) != places->size()) {
    corrupt(key, "lies on a mesh whose ranks are not those of its shape");
  }
  std::vector<MeshPlacement> placements;
  for (size_t i = 0; i < placed.size(); ++i) {
    const std::string_view kind = placed[i].at("type").text();
    if (kind != "Replicate" && kind != "Shard" && kind != "StridedShard") {
      refuse(key, "is placed as " + escaped(kind) + ", which is not read");
    }
    MeshPlacement& placement = placements.emplace_back();
    placement.is_sharded = kind != "Replicate";
    if (!placement.is_sharded) continue;
    placement.dim = static_cast<uint64_t>(placed[i].at("dim").as_int());
    if (placement.dim >= layout.shape.size()) {
      corrupt(key, "is cut along a dimension that it does not have");
    }
    if (kind == "StridedShard") {
      placement.split_factor = static_cast<uint64_t>(placed[i].at("split_factor").as_int());
    }
    layout.is_cut = true;
  }
  if (!layout.is_cut) return;
  const RankItem& item = item_called(item_);
  const std::set<uint64_t> ranks(group_ranks_.begin(), group_ranks_.end());
  for (size_t i = 0; i < places->size(); ++i) {
    const uint64_t rank = (*places)[i];
    if (!ranks.contains(rank) || item.form_of(item.files[rank]) == ItemForm::Torch) continue;
    Extents coordinates(mesh->size());
    for (size_t m = mesh->size(), rest = i; m-- > 0; rest /= (*mesh)[m]) {
      coordinates[m] = rest % (*mesh)[m];
    }
    Box box = box_on_mesh(layout.shape, placements, *mesh, coordinates);
    const Box inside = whole(box.sizes);
    layout.shards[rank] = {{std::move(box), inside}};
  }
}

void RankMetadata::read_files(const std::string& item, uint64_t rank, const Value& layout) {
  if (rank >= ranks_) corrupt(item, "names a file of rank " + std::to_string(rank));
  RankItem& of = item_called(item);
  if (layout.is_none()) return;
  const std::string name(layout.at("file_path").text());
  if (!is_safe_relative(name)) corrupt(item, "names a file '" + escaped(name) + "'");
  constexpr std::array kForms = {std::pair("TorchSerialization", ItemForm::Torch),
                                 std::pair("SafetensorsSerialization", ItemForm::Safetensors),
                                 std::pair("JsonSerialization", ItemForm::Json),
                                 std::pair("RawSerialization", ItemForm::Raw)};
  const std::string_view form = layout.at("serialization_format").at("type").text();
  const auto known = std::ranges::find(kForms, form, [](const auto& row) { return row.first; });
  if (known == kForms.end()) refuse(item, "is in the form '" + escaped(form) + "'");
  of.files[rank] = name;
  of.forms[name] = known->second;
}

// Items that cannot be resharded: ITEM_RANK.pt of all ranks; and who has nothing of those that can.
void RankMetadata::add_other_items() {
  for (RankItem& item : items_) {
    for (uint64_t rank = 0; rank < ranks_; ++rank) {
      const bool has_part = holders_[item.name].contains(rank);
      const bool is_there = location_.source->has(location_.folder / item.files[rank]);
      if (!has_part && !is_there) item.files[rank].clear();
    }
  }
  for (const std::string& name : location_.source->list(location_.folder)) {
    if (!name.ends_with("_0.pt")) continue;
    const std::string item = name.substr(0, name.size() - 5);
    const bool is_known = std::ranges::any_of(items_, [&](const RankItem& one) {
      return one.name == item || std::ranges::find(one.files, name) != one.files.end();
    });
    if (!is_known) item_called(item);
  }
}

void RankMetadata::open(const std::string& file, ItemForm form, Contents& contents) const {
  const auto opened = open_source(location_, file, file, limits_);
  const auto index = static_cast<uint32_t>(contents.catalog.files.size());
  contents.catalog.files.push_back({file, opened->size_bytes()});
  Document document;
  ValueTree& tree = document.tree;
  if (form != ItemForm::Safetensors) {
    const std::vector<std::byte> bytes = all_bytes_of(*opened, file, kItemTextBytesMax);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const bool is_text = form == ItemForm::Json && is_utf8(text);
    if (form == ItemForm::Json && (!is_text || scan_json(text).fault != JsonFault::None)) {
      contents.catalog.files.back().lack = "is not JSON, or ends early";
    }
    tree.set_root(is_text ? tree.str(text) : tree.bytes(text));
  } else {
    const NodeId root = tree.dict();
    const SafetensorsHeader header =
        read_safetensors_header(*opened, index, {0, opened->size_bytes()}, limits_);
    for (const TensorEntry& tensor : header.tensors) {
      const Chunk& chunk = tensor.chunks.at(0);
      StorageRegion region = chunk.region;
      region.bytes = {region.bytes.offset_bytes + chunk.payload_offset_bytes, count_bytes(tensor)};
      tree.put(root, tensor.key, add_tensor(tree, tensor.dtype, tensor.shape, tensor.key));
      document.storages.push_back({tensor.key, region});
    }
    std::ranges::sort(document.storages, {}, &StorageRecord::key);
    tree.set_root(root);
  }
  contents.documents.emplace(file, std::move(document));
}

void RankMetadata::place(const Held& held, std::optional<RankTensor>& tensor) const {
  const auto found = layouts_.find(flat_name(held.pointer));
  if (found == layouts_.end()) return;
  const Layout& layout = found->second;
  const auto plain = tensor ? std::nullopt : as_tensor(held.value);
  if (!tensor && !plain) return;
  const Extents& shape = tensor ? tensor->shape : layout.shape;
  if (shape != layout.shape || (tensor ? tensor->dtype : plain->dtype) != layout.dtype) {
    corrupt(held.pointer,
            "has a type or shape that differs from the file of rank " + std::to_string(held.rank));
  }
  if (tensor) return;
  if (!layout.is_cut) return;
  if (layout.shards.empty() && element_count(layout.shape) != 0) {
    corrupt(held.pointer,
            "is a DTensor, but whole in the file of rank " + std::to_string(held.rank));
  }
  const auto shards = layout.shards.find(held.rank);
  tensor.emplace();
  tensor->dtype = layout.dtype;
  tensor->shape = layout.shape;
  if (shards == layout.shards.end()) return;
  for (const auto& [box, inside] : shards->second) {
    if (!lies_inside(inside, plain->shape)) {
      corrupt(held.pointer, "has another part on rank " + std::to_string(held.rank) +
                                " than the file of that rank");
    }
    if (element_count(box.sizes) == 0) continue;
    tensor->parts.push_back({box, held.value});
    if (plain->shape != inside.sizes) tensor->parts.back().inside = inside;
  }
}

}  // namespace ckpt
