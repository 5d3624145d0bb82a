#include "format/joined/rank_files.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <ckpt/error.h>
#include <ckpt/flat_range.h>

#include "base/text.h"
#include "format/joined/flat_states.h"
#include "format/joined/joined_state.h"
#include "format/joined/rank_metadata.h"
#include "format/torch/torch_save.h"
#include "format/values/nesting.h"
#include "format/values/rank_tensor.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

constexpr size_t kDepthMaxJoined = 200;

// What one rank's file has at a place.
struct RankValue {
  uint64_t rank = 0;
  Value value;
  const Document* document = nullptr;
  const std::string* file = nullptr;
};

class Joiner {
 public:
  Joiner(const Location& location, const Limits& limits) : location_(location), limits_(limits) {}

  Contents run() {
    if (holds_rank_metadata(*location_.source, location_)) {
      metadata_.emplace(location_, limits_, contents_);
      items_ = metadata_->items();
    } else {
      find_files();
    }
    for (const RankItem& item : items_) {
      for (const std::string& file : item.files) open(item, file);
    }
    for (const RankItem& item : items_) {
      for (const std::string& file : item.files) refuse_flat(file);
    }
    refuse_incomplete(contents_.catalog, limits_);
    const NodeId root = state_.tree().dict();
    for (const RankItem& item : items_) join_item(item, root);
    find_renamed_files(location_, limits_, contents_.catalog);
    refuse_incomplete(contents_.catalog, limits_);
    add_own_values(root);
    contents_.joined_words = metadata_ ? metadata_->words()
                                       : "files of " + std::to_string(items_[0].files.size()) +
                                             " ranks of FSDP" + (has_flat_ ? flat_.words() : "");
    state_.finish(root, contents_);
    return std::move(contents_);
  }

 private:
  // Those of the number of ranks that most files have; of another they are of another save.
  void find_files() {
    std::map<uint64_t, std::set<std::string>> by_ranks;
    std::map<uint64_t, std::set<std::string_view>> kinds;
    for (const std::string& name : location_.source->list(location_.folder)) {
      const auto found = rank_file(name);
      if (!found) continue;
      by_ranks[found->ranks].insert(name);
      kinds[found->ranks].insert(found->kind);
    }
    uint64_t ranks = 0;
    for (const auto& [count, names] : by_ranks) {
      if (ranks == 0 || names.size() > by_ranks[ranks].size()) ranks = count;
    }
    for (const auto& [count, names] : by_ranks) {
      if (count == ranks) continue;
      for (const std::string& name : names) {
        contents_.catalog.files.push_back({name, 0, false,
                                           "is of " + std::to_string(count) +
                                               " ranks, beside files of " + std::to_string(ranks) +
                                               ": two saves lie in one folder"});
      }
    }
    for (const std::string_view kind : kRankFileKinds) {
      if (!kinds[ranks].contains(kind)) continue;
      RankItem& item = items_.emplace_back(std::string(kind));
      for (uint64_t rank = 0; rank < ranks; ++rank) {
        item.files.push_back(name_of({kind, ranks, rank}));
      }
    }
  }

  // A rank may have nothing of an item; its file then has no name.
  void open(const RankItem& item, const std::string& file) {
    if (file.empty() || is_missing(location_, file, contents_)) return;
    if (metadata_ && item.form_of(file) != ItemForm::Torch) {
      metadata_->open(file, item.form_of(file), contents_);
    } else {
      try_torch_save_file({location_, file, file}, limits_, contents_);
    }
  }

  bool is_read(const std::string& file) const {
    const auto found = std::ranges::find(contents_.catalog.files, file, &FileEntry::path);
    const bool lacks = found != contents_.catalog.files.end() && !found->lack.empty();
    return contents_.documents.contains(file) && !lacks;
  }

  void refuse_flat(const std::string& file) const {
    if (!is_read(file)) return;
    for (const TensorPart& part : parts_in(contents_.documents.at(file).tree.root())) {
      if (!part.words.starts_with("flat ")) continue;
      throw Error(ErrorCode::Unsupported, {file, std::nullopt, part.pointer}, "is a " + part.words,
                  "save with StateDictType.SHARDED_STATE_DICT, or with "
                  "torch.distributed.checkpoint; the file opens alone");
    }
  }

  // Each DTensor knows the rank that saved it.
  void check_rank(const RankTensor& tensor, const RankValue& side) {
    const uint64_t ranks = items_[0].files.size();
    const auto say = [&](const std::string& by, const std::string& called) {
      set_lack(contents_.catalog, *side.file, "was saved by " + by + ", and is called " + called);
    };
    if (tensor.rank_count && (*tensor.rank_count > ranks || ranks % *tensor.rank_count != 0)) {
      say("one of " + std::to_string(*tensor.rank_count) + " ranks",
          "one of " + std::to_string(ranks));
    } else if (tensor.rank && *tensor.rank != static_cast<int64_t>(side.rank)) {
      say("rank " + std::to_string(*tensor.rank), "rank " + std::to_string(side.rank) + "'s");
    }
  }

  static std::optional<RankTensor> rank_tensor(const Value& value, const std::string& file,
                                               const std::string& pointer) {
    try {
      return as_rank_tensor(value);
    } catch (const Error& error) {
      throw Error(error.code(), {file, std::nullopt, pointer}, error.problem(), error.hint());
    }
  }

  // --- joining ---

  void join_item(const RankItem& item, NodeId root) {
    std::vector<RankValue> sides;
    for (uint64_t rank = 0; rank < item.files.size(); ++rank) {
      if (!is_read(item.files[rank])) continue;
      const Document& document = contents_.documents.at(item.files[rank]);
      sides.push_back({rank, document.tree.root(), &document, &item.files[rank]});
    }
    if (sides.empty()) return;
    is_optimizer_ = item.name.starts_with("optim");
    item_ = item.name;
    of_kind_ = sides;
    if (is_optimizer_) find_flat();
    pointer_ = pointer_step(item.name);
    state_.tree().put(root, item.name, join(sides, 0));
  }

  void find_flat() {
    RankOptimizers optimizers;
    for (const RankValue& side : of_kind_) optimizers.emplace_back(side.rank, side.value);
    flat_ = find_flat_states(optimizers, model_, shards_);
    has_flat_ = !flat_.names.empty();
  }

  NodeId join(const std::vector<RankValue>& sides, size_t depth) {
    if (depth > kDepthMaxJoined) refuse(sides[0], "is nested too deeply");
    if (auto tensor = joined_tensor(sides)) {
      if (item_ == "model") model_.push_back(*tensor);
      const bool is_lost = is_incomplete() && !JoinedState::is_whole(*tensor);
      return is_lost ? state_.tree().none() : state_.add(std::move(*tensor));
    }
    const auto is_mapping = [](const RankValue& side) {
      return as_mapping(side.value).has_value();
    };
    if (std::ranges::all_of(sides, is_mapping)) return join_mappings(sides, depth);
    const auto is_same_list = [&](const RankValue& side) {
      return side.value.is(Kind::List) && side.value.size() == sides[0].value.size();
    };
    const bool is_nested = sides[0].value.is(Kind::List) && sides[0].value.size() > 0 &&
                           !is_leaf(sides[0].value[0]) && std::ranges::all_of(sides, is_same_list);
    return is_nested ? join_lists(sides, depth) : join_leaves(sides);
  }

  bool is_incomplete() const { return !lacking_files(contents_.catalog).empty(); }

  static bool is_leaf(const Value& value) {
    return !as_mapping(value) && !value.is(Kind::List) && !as_rank_tensor(value);
  }

  [[noreturn]] void refuse(const RankValue& side, std::string problem,
                           ErrorCode code = ErrorCode::Unsupported) const {
    throw Error(code, {*side.file, std::nullopt, pointer_}, std::move(problem));
  }

  // nullopt: it is not a tensor in parts.
  std::optional<TensorEntry> joined_tensor(const std::vector<RankValue>& sides) {
    std::optional<TensorEntry> joined;
    std::map<Extents, Copy> seen;  // by offsets: copies of ranks
    size_t wrapped = 0;
    for (const RankValue& side : sides) {
      auto tensor = rank_tensor(side.value, *side.file, pointer_);
      if (tensor) check_rank(*tensor, side);
      if (metadata_) metadata_->place({item_, pointer_, side.rank, side.value}, tensor);
      if (!tensor) continue;
      ++wrapped;
      if (item_ == "model") shards_.add(side.rank, *tensor);
      if (!joined) joined = TensorEntry{{}, pointer_, tensor->dtype, tensor->shape, {}};
      if (tensor->dtype != joined->dtype || tensor->shape != joined->shape) {
        refuse(side, "has a type or shape that differs from rank 0's file", ErrorCode::Corrupt);
      }
      for (const RankTensor::Part& part : tensor->parts) {
        const RankValue local_side{side.rank, part.local, side.document, side.file};
        const auto [known, is_new] =
            seen.emplace(part.box.offsets, Copy{part.box.sizes, local_side});
        if (!is_new && known->second.sizes == part.box.sizes) {
          if (!part.inside) compare_copies(known->second.first, local_side);
          continue;
        }
        TensorView view = *as_tensor(part.local);
        for (size_t i = 0; part.inside && i < view.shape.size(); ++i) {
          view.offset += part.inside->offsets[i] * view.strides[i];
          view.shape[i] = part.inside->sizes[i];
        }
        TensorEntry local = make_tensor_entry(
            *side.document, {pointer_, part.local.id(), std::move(view)}, *side.file);
        local.chunks[0].box = part.box;
        joined->chunks.push_back(std::move(local.chunks[0]));
      }
    }
    if (joined && sides.size() < of_kind_.size() && !JoinedState::is_whole(*joined)) {
      tell_lacking_key(sides, [](uint64_t) { return true; });
    }
    if (wrapped != 0 && wrapped != sides.size()) {
      refuse(sides[0], "is whole in one rank's file and a part in another's", ErrorCode::Corrupt);
    }
    return joined;
  }

  void tell_lacking_key(const std::vector<RankValue>& sides,
                        const std::function<bool(uint64_t rank)>& has_part) {
    for (const RankValue& side : of_kind_) {
      const bool is_there = std::ranges::find(sides, side.rank, &RankValue::rank) != sides.end();
      if (is_there || !has_part(side.rank)) continue;
      set_lack(contents_.catalog, *side.file,
               "has no '" + escaped(pointer_) + "', of which other ranks have parts");
    }
  }

  struct Copy {
    Extents sizes;
    RankValue first;
  };

  std::optional<std::string> content_in_file(const RankValue& side) const {
    std::unique_ptr<OpenedFile> file;
    const bool needs_file = std::ranges::any_of(
        side.document->storages,
        [](const StorageRecord& storage) { return storage.region.crc32.value_or(0) == 0; });
    if (needs_file) file = open_source(location_, *side.file, *side.file, limits_);
    return content_of(side.value, *side.document, file.get());
  }

  void tell_other_save(const RankValue& first, const RankValue& other) {
    set_lack(contents_.catalog, *other.file,
             "differs from " + *first.file + " in '" + escaped(pointer_) +
                 "', which all ranks have alike: it is of another save");
  }

  void compare_copies(const RankValue& first, const RankValue& other) {
    const auto one = content_in_file(first), two = content_in_file(other);
    if (one && two && one != two) tell_other_save(first, other);
  }

  NodeId join_mappings(const std::vector<RankValue>& sides, size_t depth) {
    std::map<std::pair<Kind, std::string>, size_t> places;
    std::vector<std::pair<Value, std::vector<RankValue>>> items;
    for (const RankValue& side : sides) {
      const Value mapping = *as_mapping(side.value);
      for (const auto& [key, value] : items_of(mapping)) {
        const auto [place, is_new] =
            places.emplace(std::pair(key.kind(), key_text(key)), items.size());
        if (is_new) items.push_back({key, {}});
        items[place->second].second.push_back({side.rank, value, side.document, side.file});
      }
    }
    if (flat_.params && pointer_.ends_with("/state")) {  // ranks lack others of these
      std::ranges::stable_sort(items, {}, [](const auto& item) {
        return item.first.is(Kind::Int) ? item.first.as_int() : 0;
      });
    }
    const NodeId dict = state_.tree().dict();
    for (const auto& [key, values] : items) {
      const size_t length = pointer_.size();
      pointer_ += pointer_step(key_text(key));
      const NodeId name = state_.tree().copy(key);
      state_.tree().set_item(dict, name, join(values, depth + 1));
      pointer_.resize(length);
    }
    return dict;
  }

  NodeId join_lists(const std::vector<RankValue>& sides, size_t depth) {
    const NodeId list = state_.tree().list();
    for (size_t i = 0; i < sides[0].value.size(); ++i) {
      std::vector<RankValue> values;
      for (const RankValue& side : sides) {
        values.push_back({side.rank, side.value[i], side.document, side.file});
      }
      const size_t length = pointer_.size();
      pointer_ += "/" + std::to_string(i);
      state_.tree().append(list, join(values, depth + 1));
      pointer_.resize(length);
    }
    return list;
  }

  NodeId join_leaves(const std::vector<RankValue>& sides) {
    if (!parts_in(sides[0].value).empty()) {
      refuse(sides[0], "holds a tensor in parts inside of something else");
    }
    const FlatStates::Unit* const unit = flat_.at(pointer_);
    if (unit != nullptr && unit->shape) return join_flat(sides, *unit);
    if (unit != nullptr || is_flat(sides)) {
      has_flat_ = true;
      for (const RankValue& side : sides) own_[side.rank].emplace_back(pointer_, side);
      return state_.tree().none();
    }
    const auto content = content_in_file(sides[0]);
    const bool is_common = is_optimizer_ || pointer_.ends_with("/lr_scheduler/last_epoch");
    for (size_t i = 1; i < sides.size(); ++i) {
      const auto other = content_in_file(sides[i]);
      if (content && other == content) continue;
      if (is_common && content && other) tell_other_save(sides[0], sides[i]);
      if (is_common && content && other) continue;
      own_[sides[i].rank].emplace_back(pointer_, sides[i]);
    }
    return carried(sides[0]);
  }

  // Without what fills up the rows.
  NodeId join_flat(const std::vector<RankValue>& sides, const FlatStates::Unit& unit) {
    const auto one = as_tensor(sides[0].value);
    TensorEntry joined{{}, pointer_, one ? one->dtype : DType(), *unit.shape, {}};
    std::map<uint64_t, RankValue> seen;  // by part: replicas
    for (const RankValue& side : sides) {
      const auto part = shards_.of_rank.find(side.rank);
      if (part == shards_.of_rank.end()) continue;
      const auto view = as_tensor(side.value);
      const uint64_t length = unit.lengths[part->second];
      if (!view || view->shape != Extents{length} || view->dtype != joined.dtype) {
        set_lack(contents_.catalog, *side.file,
                 "has other than " + std::to_string(length) + " elements in '" + escaped(pointer_) +
                     "', which its rank has of it");
        continue;
      }
      const auto [known, is_new] = seen.emplace(part->second, side);
      if (is_new) {
        add_row(side, *view, unit.first(part->second), joined);
      } else {
        compare_copies(known->second, side);
      }
    }
    tell_lacking_key(sides, [&](uint64_t rank) {
      const auto part = shards_.of_rank.find(rank);
      return part != shards_.of_rank.end() && unit.lengths[part->second] != 0;
    });
    if (JoinedState::is_whole(joined)) return state_.add(std::move(joined));
    set_lack(contents_.catalog, *sides[0].file,
             "has, with the other ranks' files, not all elements of '" + escaped(pointer_) + "'");
    return state_.tree().none();
  }

  // The elements of a row from one of the whole on.
  static void add_row(const RankValue& side, TensorView view, uint64_t first, TensorEntry& joined) {
    const uint64_t stride = view.strides[0];
    const uint64_t count = std::min(view.shape[0], element_count(joined.shape) - first);
    for (Box& box : boxes_of_flat_range(whole(joined.shape), first, count)) {
      view.shape = box.sizes;
      view.strides = row_major_strides(box.sizes);
      for (uint64_t& each : view.strides) each *= stride;
      TensorEntry local =
          make_tensor_entry(*side.document, {joined.key, side.value.id(), view}, *side.file);
      view.offset += element_count(box.sizes) * stride;
      local.chunks[0].box = std::move(box);
      joined.chunks.push_back(std::move(local.chunks[0]));
    }
  }

  // The elements that each rank of FSDP1 has of a flat parameter, of which no file says how it is
  // put together.
  bool is_flat(const std::vector<RankValue>& sides) const {
    const auto is_row = [](const RankValue& side) {
      const auto tensor = as_tensor(side.value);
      return tensor && tensor->shape.size() == 1;
    };
    const bool is_state = is_optimizer_ && pointer_.find("/state/") != pointer_.npos;
    if (!is_state || of_kind_.size() == 1 || !std::ranges::all_of(sides, is_row)) return false;
    const auto content = content_in_file(sides[0]);
    return sides.size() < of_kind_.size() || std::ranges::any_of(sides, [&](const RankValue& side) {
             return !content || content_in_file(side) != content;
           });
  }

  NodeId carried(const RankValue& side) {
    return state_.carry(side.value, *side.document, std::to_string(side.rank) + *side.file + ":");
  }

  void add_own_values(NodeId root) {
    if (own_.empty()) return;
    ValueTree& tree = state_.tree();
    const NodeId ranks = tree.dict();
    for (const auto& [rank, values] : own_) {
      const NodeId own = tree.dict();
      for (const auto& [pointer, side] : values) tree.put(own, pointer, carried(side));
      tree.set_item(ranks, tree.integer(static_cast<int64_t>(rank)), own);
    }
    tree.put(root, "ranks", ranks);
  }

  const Location& location_;
  const Limits& limits_;
  Contents contents_;
  std::optional<RankMetadata> metadata_;  // of torch_checkpointing
  std::vector<RankItem> items_;
  std::string item_;
  JoinedState state_;
  std::string pointer_;
  bool is_optimizer_ = false, has_flat_ = false;
  std::vector<RankValue> of_kind_;  // all that are read of it
  std::vector<TensorEntry> model_;  // what ranks have parts of
  RankShards shards_;
  FlatStates flat_;
  std::map<uint64_t, std::vector<std::pair<std::string, RankValue>>> own_;
};

}  // namespace

Contents read_rank_files(const Location& location, const Limits& limits) {
  return Joiner(location, limits).run();
}

}  // namespace ckpt
