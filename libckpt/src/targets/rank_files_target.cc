#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>

#include "base/text.h"
#include "format/joined/flat_states.h"
#include "format/joined/rank_files.h"
#include "format/torch/torch_save.h"
#include "format/values/nesting.h"
#include "format/values/rank_tensor.h"
#include "targets/plain_target.h"
#include "targets/rank_forms.h"
#include "targets/rank_tensor_writer.h"

namespace ckpt {
namespace {

constexpr std::string_view kModel = "model", kOptimizer = "optim";
constexpr std::string_view kOwnValues = "ranks", kRandomStates = "rng", kExtraState = "extra_state";

// What one rank has in the place of what all have: at a pointer, entries whose paths start there.
using OwnValues = std::map<std::string, std::vector<PlainEntry>, std::less<>>;

size_t steps_of(std::string_view pointer) {
  return static_cast<size_t>(std::ranges::count(pointer, '/'));
}

// 0: the source does not consist of rank files.
uint64_t count_ranks(const Checkpoint& source) {
  uint64_t ranks = 0;
  for (const FileEntry& file : source.catalog().files) {
    if (const auto named = rank_file(file.path)) ranks = named->ranks;
  }
  return source.joined_words().empty() ? 0 : ranks;
}

class Writer {
 public:
  Writer(const Checkpoint& source, PlainState& state, const RankFilesSpec& spec)
      : source_(source),
        state_(state),
        ranks_(spec.base.ranks),
        sizes_(spec.sizes),
        mesh_device_(spec.base.mesh_device) {}

  Target run() {
    find_files();
    sort_entries();
    refuse_whole();
    find_flat();
    refuse_own_values();
    for (const std::string_view kind : kRankFileKinds) {
      if (!entries_.contains(kind)) continue;
      for (uint64_t rank = 0; rank < ranks_; ++rank) add_file({kind, ranks_, rank});
    }
    tell_guess();
    target_.not_carried = std::move(state_.not_carried);
    return std::move(target_);
  }

 private:
  void find_files() {
    ranks_of_source_ = count_ranks(source_);
    if (ranks_of_source_ != 0) return;
    if (source_.catalog().format == Format::Torch) {
      throw Error(ErrorCode::Unsupported, {source_.shown_path()},
                  "is a torch.save file; expected files of FSDP's ranks, "
                  "model_world_size_W_rank_R.pt, a DCP folder, or safetensors",
                  "--to safetensors --model-only makes of its model what --to rank_files takes");
    }
    makes_forms_ = true;
    ranks_of_source_ = 1;
    for (const PlainEntry& entry : state_.entries) {
      if (entry.path[0].text == kOwnValues && entry.path.size() > 2) {
        const uint64_t rank = number_in<uint64_t>(entry.path[1].text).value_or(0);
        ranks_of_source_ = std::max(ranks_of_source_, rank + 1);
      }
      is_cut_ = is_cut_ || (entry.tensor && entry.tensor->chunks.size() > 1);
    }
  }

  void sort_entries() {
    for (const PlainEntry& entry : state_.entries) {
      const std::string& kind = entry.path[0].text;
      if (kind == kOwnValues && entry.path.size() > 2) {
        const auto rank = number_in<uint64_t>(entry.path[1].text);
        PlainEntry own = entry;
        own.path.erase(own.path.begin(), own.path.begin() + 3);
        own_[rank.value_or(0)][entry.path[2].text].push_back(std::move(own));
      } else if (std::ranges::find(kRankFileKinds, kind) != std::end(kRankFileKinds) &&
                 entry.path.size() > 1) {
        entries_[kind].push_back(entry);
      } else {
        throw Error(ErrorCode::Unsupported, {source_.shown_path(), {}, entry.key},
                    "is not in model, optim or extra_state, the kinds of rank files",
                    "--rename and --exclude choose what becomes of it");
      }
    }
  }

  const std::vector<PlainEntry>& of_kind(std::string_view kind) const {
    static const std::vector<PlainEntry> kNone;
    const auto found = entries_.find(kind);
    return found == entries_.end() ? kNone : found->second;
  }

  // --- FSDP1 ---

  // FSDP1 of one rank saves whole tensors, of which nothing says how more ranks would cut them.
  void refuse_whole() {
    const auto has_tensor = [](const PlainEntry& entry) { return entry.tensor != nullptr; };
    const auto is_cut = [&](const PlainEntry& entry) {
      return entry.tensor && is_cut_in_source(*entry.tensor);
    };
    const auto& model = of_kind(kModel);
    if (makes_forms_ || ranks_of_source_ != 1 || ranks_ == 1 ||
        std::ranges::none_of(model, has_tensor) || std::ranges::any_of(model, is_cut)) {
      return;
    }
    throw Error(ErrorCode::Unsupported, {source_.shown_path()},
                "has the whole model in the file of one rank, as FSDP1 saves it there: nothing "
                "says how more ranks would have cut it",
                "--to safetensors --model-only makes of it what --to rank_files takes");
  }

  bool is_cut_in_source(const TensorEntry& tensor) {
    const RankForms& forms = forms_of({kModel, ranks_of_source_, 0});
    const auto form = forms.values.find(tensor.key);
    return form != forms.values.end() && as_rank_tensor(form->second);
  }

  // As the source is read.
  void find_flat() {
    const bool is_fsdp1 = source_.joined_words().find("of FSDP1") != std::string::npos;
    if (makes_forms_ || !is_fsdp1 || !entries_.contains(kOptimizer)) return;
    RankOptimizers optimizers;
    RankShards shards;
    for (uint64_t rank = 0; rank < ranks_of_source_; ++rank) {
      const RankForms& optimizer = forms_of({kOptimizer, ranks_of_source_, rank});
      optimizers.emplace_back(rank, optimizer.document->tree.root());
      for (const auto& [place, form] : forms_of({kModel, ranks_of_source_, rank}).values) {
        if (const auto known = as_rank_tensor(form)) shards.add(rank, *known);
      }
    }
    std::vector<TensorEntry> model, written;
    for (const TensorEntry& tensor : source_.catalog().tensors) {
      if (tensor.key.starts_with("/model/") && is_cut_in_source(tensor)) model.push_back(tensor);
    }
    flat_ = find_flat_states(optimizers, model, shards);
    if (!has_flat()) return;
    for (const PlainEntry& entry : of_kind(kModel)) {
      if (entry.tensor && is_cut_in_source(*entry.tensor)) written.push_back(*entry.tensor);
    }
    const uint64_t parts = part_for({.rank = 0, .ranks = ranks_, .sizes = sizes_}).parts;
    std::string problem;
    if (flat_.params) {
      places_ = flat_.places_in(parts);
      const bool is_all = written.size() == model.size();
      problem = is_all ? places_.problem : "parameters of the model are left out";
    } else {
      problem = problem_of_parts(flat_, written, parts);
    }
    if (problem.empty()) return;
    throw Error(
        ErrorCode::Unsupported, {source_.shown_path()},
        (flat_.params
             ? "has parts of FSDP1's parameters, whose cuts are not known for "
             : "has flat parameters of FSDP1, whose sizes would not be known from files of ") +
            std::to_string(ranks_) + " ranks: " + problem,
        "choose another --world-size, and leave the model in");
  }

  WrittenPart part_for(WrittenRank rank) {
    const RankForms& forms = forms_of({kModel, ranks_of_source_, rank.rank % ranks_of_source_});
    for (const auto& [pointer, form] : forms.values) {
      if (const auto known = as_rank_tensor(form)) return written_part(*known, rank);
    }
    return {rank.rank, rank.ranks};
  }

  bool has_flat() const { return !flat_.names.empty() && flat_.problem.empty(); }

  // Whether the rank has nothing of the parameter that a state belongs to.
  bool is_of_other_parts(const PlainEntry& entry, WrittenPart at) const {
    if (!has_flat() || !flat_.params || at.parts == 1 || entry.path.size() < 4) return false;
    const auto number = number_in<size_t>(entry.path[2].text);
    const bool is_state = entry.path[1].text == "state" && number && *number < flat_.units.size();
    const auto& place = is_state ? places_.of_params[*number] : std::nullopt;
    return place && place->count(at.part) == 0;
  }

  // A rank's part of it. That of a flat parameter is filled up with zeros.
  NodeId add_flat(ArchiveBuilder& builder, const PlainEntry& entry, WrittenPart at) const {
    const uint64_t all = element_count(entry.tensor->shape);
    FlatPlace place{0, all, all / at.parts + (all % at.parts != 0)};
    if (flat_.params) place = *places_.of_params[*number_in<size_t>(entry.path[1].text)];
    const uint64_t count = place.count(at.part);
    std::vector<Segment> own;
    if (count > 0) own.push_back({0, whole_of(entry), place.first(at.part), count});
    return builder.add_tensor(entry.tensor->dtype, {flat_.params ? count : place.each},
                              std::move(own));
  }

  [[noreturn]] void refuse_flat(const std::string& pointer) const {
    throw Error(
        ErrorCode::Unsupported, {source_.shown_path(), {}, pointer},
        "differs between ranks: it is a part of a flat parameter of FSDP1, and the sizes "
        "of the model's modules do not tell which elements that has",
        "save FSDP.optim_state_dict() with torch.distributed.checkpoint; --model-only takes "
        "the model alone");
  }

  void refuse_own_values() {
    for (const auto& [rank, values] : own_) {
      for (const auto& [pointer, entries] : values) {
        const std::string_view inside = std::string_view(pointer).substr(1);
        const size_t kind = inside.find('/');
        if (inside.substr(0, kind) != kExtraState || kind == inside.npos) {
          if (pointer.starts_with("/optim/state/")) refuse_flat(pointer);
          throw Error(
              ErrorCode::Unsupported, {source_.shown_path(), {}, pointer},
              "differs between ranks: nothing says what another number of ranks should have",
              "--exclude leaves it out");
        }
        const std::string_view place = inside.substr(kind + 1);
        of_each_rank_.insert(step_text(place.substr(0, place.find('/'))));
      }
    }
    if (ranks_of_source_ == 1) of_each_rank_.emplace(kRandomStates);
    if (ranks_ <= ranks_of_source_ || !entries_.contains(kExtraState)) return;
    for (const PlainEntry& entry : entries_[std::string(kExtraState)]) {
      if (of_each_rank_.contains(entry.path[1].text)) lacking_.insert(entry.path[1].text);
    }
    for (const std::string& name : lacking_) {
      target_.warnings.push_back("no such ranks were saved: the files of ranks from " +
                                 std::to_string(ranks_of_source_) + " on have no " + escaped(name) +
                                 ", so that they go on with what their run starts with");
    }
  }

  void add_file(const RankFile& file) {
    PlainState state;
    const WrittenRank rank{file.rank, ranks_, makes_forms_ ? 1 : ranks_of_source_, sizes_};
    const WrittenPart part = has_flat() ? part_for(rank) : WrittenPart();
    for (const PlainEntry& entry : of_kind(file.kind)) {
      if (file.kind != kOptimizer || !is_of_other_parts(entry, part)) add_entry(entry, file, state);
    }
    if (file.kind == kOptimizer && flat_.params) add_empty_state(state);
    const RankForms& forms = forms_of({file.kind, ranks_of_source_, file.rank % ranks_of_source_});
    state.keys = forms.document;
    for (PlainEntry& entry : state.entries) {
      entry.path.erase(entry.path.begin());
      entry.path[0].holder = forms.document->tree.root();
    }
    std::optional<RankTensorWriter> tensors;
    const std::string name = name_of(file);
    TargetFile made;
    made.path = name;
    made.archives.push_back(
        nested_archive(state, name.substr(0, name.rfind('.')),
                       [&](ArchiveBuilder& builder, const PlainEntry& entry) {
                         if (!tensors) tensors.emplace(builder, rank);
                         return add_tensor(builder, entry, {forms, *tensors, part});
                       }));
    target_.files.push_back(std::move(made));
  }

  // Of a rank that has parts of no parameter.
  static void add_empty_state(PlainState& state) {
    const auto is_of_state = [](const PlainEntry& entry) { return entry.path[1].text == "state"; };
    if (std::ranges::any_of(state.entries, is_of_state)) return;
    auto empty = std::make_shared<Document>();
    empty->tree.set_root(empty->tree.dict());
    PlainEntry entry{"optim.state", {{"optim"}, {"state"}}, nullptr, false, empty};
    entry.node = empty->tree.root().id();
    entry.is_empty_mapping = true;
    state.entries.push_back(std::move(entry));
  }

  // The rank's own in its place; of a rank that was not there nothing that each has of its own.
  void add_entry(const PlainEntry& entry, const RankFile& file, PlainState& part) {
    const bool is_new = file.rank >= ranks_of_source_ && file.kind == kExtraState;
    if (is_new && lacking_.contains(entry.path[1].text)) return;
    const std::string pointer = pointer_of(entry.path);
    for (const auto& [place, values] : own_[file.rank]) {
      if (pointer != place && !pointer.starts_with(place + "/")) continue;
      if (!added_.insert(std::to_string(file.rank) + place).second) return;
      for (const PlainEntry& value : values) {
        part.entries.push_back(value);
        std::vector<PathStep>& path = part.entries.back().path;
        path.insert(path.begin(), entry.path.begin(),
                    entry.path.begin() + static_cast<std::ptrdiff_t>(steps_of(place)));
      }
      return;
    }
    part.entries.push_back(entry);
  }

  const RankForms& forms_of(const RankFile& file) {
    const std::string name = makes_forms_ ? std::string(file.kind) : name_of(file);
    const auto [found, is_new] = forms_.try_emplace(name);
    if (!is_new) return found->second;
    if (makes_forms_) return made_forms(file.kind, found->second);
    Location location;
    location.source = {std::shared_ptr<const Folder>(), &source_.source()};
    location.folder = source_.folder();
    Contents contents;
    try_torch_save_file({location, name, name}, source_.limits(), contents);
    found->second = forms_in(std::make_shared<Document>(std::move(contents.documents.at(name))),
                             pointer_step(file.kind));
    return found->second;
  }

  // --- a DCP folder, or safetensors ---

  using Shapes = std::map<std::string, Extents, std::less<>>;

  const RankForms& made_forms(std::string_view kind, RankForms& forms) {
    const auto document = std::make_shared<Document>();
    ValueTree& tree = document->tree;
    tree.set_root(kind == "model" ? add_ordered_dict(tree) : tree.dict());
    const NodeId mesh = add_mesh_form(tree, mesh_device_);
    const Shapes params = named_params();
    for (const PlainEntry& entry : entries_.at(std::string(kind))) {
      if (!entry.tensor || kind == kExtraState || !is_cut(entry, kind, params)) continue;
      const TensorEntry& tensor = *entry.tensor;
      const NodeId form = add_rank_tensor_form(tree, tensor.dtype, tensor.shape, mesh);
      forms.values.emplace(tensor.key, tree.value(form));
    }
    forms.document = document;
    return forms;
  }

  // Those that the optimizer names, by their places.
  Shapes named_params() const {
    const std::set<std::string> names(state_.param_names.begin(), state_.param_names.end());
    Shapes params;
    for (const PlainEntry& entry : state_.entries) {
      if (entry.path[0].text != "model" || !entry.tensor || entry.path.size() != 2) continue;
      if (names.contains(entry.path[1].text)) {
        params.emplace(entry.path[1].text, entry.tensor->shape);
      }
    }
    return params;
  }

  bool is_cut(const PlainEntry& entry, std::string_view kind, const Shapes& params) {
    const TensorEntry& tensor = *entry.tensor;
    if (tensor.chunks.size() > 1) return true;
    const bool is_model = kind == "model";
    if (tensor.shape.empty() || (!is_model && entry.path[1].text != "state")) return false;
    const auto number = number_in<size_t>(is_model ? "" : entry.path[2].text);
    const bool is_named = number && *number < state_.param_names.size();
    const auto param = params.find(is_named ? state_.param_names[*number] : entry.path[1].text);
    if (param != params.end()) return param->second == tensor.shape;
    if (is_cut_ && tensor.shape[0] > 1) return false;
    if (is_model && state_.param_names.empty()) {
      const bool is_taken = name(tensor.dtype).find("float") != std::string_view::npos;
      ++(is_taken ? taken_as_params_ : taken_as_buffers_);
      return is_taken;
    }
    throw Error(ErrorCode::Unsupported, {source_.shown_path(), {}, entry.key},
                "lies in one piece: nothing says whether it is a parameter, which ranks cut, or a "
                "tensor that each rank has whole");
  }

  void tell_guess() {
    if (taken_as_params_ + taken_as_buffers_ == 0) return;
    target_.warnings.push_back(
        "nothing says which tensors are parameters: the " + std::to_string(taken_as_params_) +
        " of floating point are cut by rows, as FSDP cuts parameters, the others (" +
        std::to_string(taken_as_buffers_) +
        ") are whole on each rank; load_state_dict(assign=False) refuses what the model has "
        "otherwise");
  }

  struct Forms {
    const RankForms& of_file;
    RankTensorWriter& tensors;
    WrittenPart part;  // of flat parameters
  };

  NodeId add_tensor(ArchiveBuilder& builder, const PlainEntry& entry, const Forms& forms) const {
    const auto form = forms.of_file.values.find(entry.tensor->key);
    const auto known =
        form == forms.of_file.values.end() ? std::nullopt : as_rank_tensor(form->second);
    if (!known && forms.part.parts > 1 && flat_.at(pointer_of(entry.path))) {
      return add_flat(builder, entry, forms.part);
    }
    const bool is_whole = has_flat() && forms.part.parts == 1;  // FSDP1 of one rank
    if (known && !is_whole) {
      try {
        return forms.tensors.add(entry.tensor, form->second, *known);
      } catch (const Error& error) {
        throw Error(error.code(), {source_.shown_path(), {}, entry.tensor->key}, error.problem(),
                    error.hint());
      }
    }
    const NodeId node =
        builder.add_tensor(entry.tensor->dtype, entry.tensor->shape, whole_of(entry));
    if (form != forms.of_file.values.end()) {
      set_device(builder.tree(), node, device_of(form->second));
    }
    return node;
  }

  const Checkpoint& source_;
  PlainState& state_;
  uint64_t ranks_, ranks_of_source_ = 0;
  MeshSizes sizes_;
  std::string mesh_device_;
  bool makes_forms_ = false, is_cut_ = false;  // of a source without; any of its tensors
  uint64_t taken_as_params_ = 0, taken_as_buffers_ = 0;
  std::map<std::string, std::vector<PlainEntry>, std::less<>> entries_;  // by kind
  std::map<uint64_t, OwnValues> own_;
  FlatStates flat_;    // of FSDP1
  FlatPlaces places_;  // of its parameters in the files that are written, by number
  // In extra_state: what each rank has of its own, and what of it new ranks lack.
  TextSet of_each_rank_, lacking_;
  TextSet added_;
  std::map<std::string, RankForms> forms_;
  Target target_;
};

}  // namespace

bool holds_rank_files(const Checkpoint& source) { return count_ranks(source) != 0; }

Target rank_files_target(const Checkpoint& source, PlainState state, const RankFilesSpec& spec) {
  if (!spec.base.types.empty()) {
    throw Error(ErrorCode::InvalidArgument, {}, "files of ranks keep the types of the source",
                "leave out --dtype");
  }
  if (spec.base.ranks > kRanksMax) {
    throw Error(ErrorCode::InvalidArgument, {},
                "at most " + std::to_string(kRanksMax) + " ranks have files");
  }
  return Writer(source, state, spec).run();
}

}  // namespace ckpt
