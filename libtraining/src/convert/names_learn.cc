// A table of names out of one model in both forms.
#include <algorithm>
#include <set>
#include <unordered_map>

#include <ckpt/cast.h>
#include <ckpt/folder.h>
#include <ckpt/printed.h>
#include <ckpt/run_jobs.h>
#include <ckpt/tensor_stream.h>
#include <training/names_check.h>

#include "convert/repaired_source.h"
#include "grid/placement.h"
#include "huggingface/config_args.h"
#include "huggingface/export.h"
#include "huggingface/learned_groups.h"
#include "huggingface/quantized.h"
#include "huggingface/table_walk.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

using Evidence = LearnedGroup::Evidence;

std::vector<LearnedTensor> model_tensors(const TrainingState& state) {
  std::vector<LearnedTensor> tensors;
  for (const TrainedParam& param : state.params) {
    tensors.push_back({param.weight.get(), param.info.name, numbered_model_name(param.info.name)});
  }
  return tensors;
}

std::vector<LearnedTensor> tensors_in(const ckpt::Catalog& catalog) {
  std::vector<LearnedTensor> tensors;
  for (const TensorEntry& tensor : catalog.tensors) tensors.push_back({&tensor, tensor.key});
  return tensors;
}

// What a table makes of the model, compared with all bytes of the folder; which elements of the
// model it has.
class TableCheck {
 public:
  TableCheck(const NameTable& table, const json& args, const json& given, const LearnedSides& sides)
      : table_(table), scope_(table, args, given), sides_(sides) {
    json without_padding = given;
    without_padding["vocabulary_rows"] = given["vocabulary"];
    import_scope_.emplace(table, args, std::move(without_padding));
    for (const LearnedTensor& tensor : sides.model) model_[tensor.name] = &tensor;
  }

  void run(const ckpt::Catalog& folder, NamesLearned& learned) {
    std::vector<TableTensor> tensors;
    for_each_tensor(table_, scope_, [&](TableTensor tensor) { tensors.push_back(tensor); });
    std::vector<Comparison> compared;
    for (const TableTensor& tensor : tensors) {
      compared.push_back(made_of(tensor, folder.find_tensor(tensor.key)));
    }
    ckpt::run_jobs(tensors.size(), ckpt::thread_count(0), [&](size_t i, unsigned) {
      auto& [made, found, problem] = compared[i];
      if (!problem.empty()) return;
      const bool is_same =
          ckpt::same_bytes(made, sides_.model_payloads, *found, sides_.folder_payloads);
      if (!is_same)
        problem = "has other values than its row makes of " + tensors[i].parts[0].names[0];
    });
    std::set<std::string_view> made;
    for (size_t i = 0; i < tensors.size(); ++i) {
      made.insert(tensors[i].key);
      const auto& [result, found, problem] = compared[i];
      if (!problem.empty()) {
        learned.unexplained.push_back({tensors[i].key, problem});
        continue;
      }
      ++learned.equal_count;
      equal_elements_ += ckpt::element_count(found->shape);
      cover(tensors[i], *found);
    }
    for (const TensorEntry& tensor : folder.tensors) {
      all_elements_ += ckpt::element_count(tensor.shape);
      if (!made.contains(tensor.key)) ++learned.missing_count;
    }
    list_uncovered(learned);
  }
  uint64_t equal_elements() const { return equal_elements_; }
  uint64_t all_elements() const { return all_elements_; }

 private:
  const LearnedTensor* find(const TableTensor::Part& part) const {
    for (const std::string& name : part.names) {
      const auto found = model_.find(name);
      if (found != model_.end()) return found->second;
    }
    return nullptr;
  }

  // What a table makes of the model, in the folder's type, and what is to be its equal.
  struct Comparison {
    TensorEntry made = {};
    const TensorEntry* found = nullptr;
    std::string problem = {};  // why they cannot be compared, or differ
  };
  Comparison made_of(const TableTensor& tensor, const TensorEntry* found) const {
    if (found == nullptr) return {{}, {}, "is not in the folder, where others of its kind are"};
    std::vector<ViewedPart> parts;
    for (const TableTensor::Part& part : tensor.parts) {
      const LearnedTensor* const source = find(part);
      if (source == nullptr) {
        return {{}, found, "comes from " + part.names[0] + ", which the checkpoint lacks"};
      }
      parts.push_back({std::make_shared<TensorEntry>(*source->entry), part.expert, part.part});
    }
    try {
      const ViewedTensor view = view_tensor(*tensor.row, scope_, parts);
      if (view.shape != found->shape) {
        return {{},
                found,
                "has the shape " + ckpt::shape_text(found->shape) + ", by its row it has " +
                    ckpt::shape_text(view.shape)};
      }
      const DType type = tensor.added != 0 ? view.entry->dtype : found->dtype;
      const bool is_cast = tensor.added != 0 || type != view.entry->dtype;
      Comparison made{*view.entry, found};
      if (is_cast) made.made = ckpt::with_cast(*view.entry, type, {.added = tensor.added});
      if (type != found->dtype) made.problem = "has a different type from the sum that it is";
      return made;
    } catch (const Error& error) {
      return {{}, found, error.what()};
    }
  }

  // Elements of the model that the folder's tensor has.
  void cover(const TableTensor& tensor, const TensorEntry& found) {
    std::vector<size_t> numbers(tensor.parts.size());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
    for (GivenPart& part : parts_of({found, *tensor.row}, *import_scope_, numbers)) {
      const LearnedTensor* const source = find(tensor.parts[part.tensor]);
      Covered& covered = covered_[source->name];
      if (covered.count == ckpt::element_count(part.shape)) continue;  // a copy
      covered.wanted = ckpt::element_count(part.shape);
      for (const Chunk& chunk : part.chunks) {
        covered.count += ckpt::element_count(chunk.box.sizes);
      }
    }
  }

  void list_uncovered(NamesLearned& learned) const {
    for (const LearnedTensor& tensor : sides_.model) {
      const auto covered = covered_.find(tensor.name);
      if (covered == covered_.end()) {
        learned.unexplained.push_back({tensor.name, "no tensor of the folder has it"});
      } else if (covered->second.count != covered->second.wanted) {
        learned.unexplained.push_back(
            {tensor.name, "the folder has " + std::to_string(covered->second.count) + " of its " +
                              std::to_string(covered->second.wanted) + " elements"});
      }
    }
  }

  struct Covered {
    uint64_t count = 0, wanted = 0;
  };
  const NameTable& table_;
  NameScope scope_;
  std::optional<NameScope> import_scope_;
  const LearnedSides& sides_;
  std::unordered_map<std::string_view, const LearnedTensor*> model_;
  std::unordered_map<std::string, Covered> covered_;
  uint64_t equal_elements_ = 0, all_elements_ = 0;
};

void list_groups(LearnedGroups& groups, const std::vector<LearnedTensor>& folder,
                 NamesLearned& learned) {
  for (const LearnedGroup& group : groups.groups()) {
    if (group.evidence == Evidence::None) {
      for (const uint32_t member : group.members) {
        learned.unexplained.push_back({folder[member].name, group.problem});
      }
      continue;
    }
    ++learned.row_count;
    std::string why;
    switch (group.evidence) {
      case Evidence::Numbers: why = "equal to others of its kind, taken by their numbers"; break;
      case Evidence::WeightRows: why = "one value alone, taken by the rows of its weight"; break;
      case Evidence::LeftOver: why = "one value alone, the only one left of its shape"; break;
      case Evidence::Words: why = "one value alone, taken by its name"; break;
      default:
        if (!group.rule || group.rule->alike_count == 0) continue;
        why = std::to_string(group.rule->alike_count) +
              " of its rows or columns hold what others hold, taken as those beside them";
    }
    learned.not_by_content.push_back(
        {group.pattern, ckpt::joined(group.sources, " or ") + ": " + why});
  }
  for (const auto& [patterns, count] : groups.ties()) {
    learned.ties.push_back(
        {ckpt::joined(patterns), std::to_string(count) + " tensors that have an equal"});
  }
}

void require_pair(const TableCheck& check, const NamesLearned& learned,
                  const OpenedTraining& folder) {
  if (check.equal_elements() * 2 > check.all_elements()) return;
  throw Error(ErrorCode::Unsupported, {.file = folder.shown_path(), .key = {}},
              "is not the checkpoint's model: " + std::to_string(learned.equal_count) + " of " +
                  std::to_string(folder.catalog().tensors.size()) +
                  " tensors have values of it; expected one model in both forms",
              "the first iteration of a run and the folder that it began with, or an iteration and "
              "its export");
}

uint32_t further_layers(const std::vector<LearnedTensor>& model) {
  uint32_t count = 0;
  for (const LearnedTensor& tensor : model) {
    if (const auto number = tensor.numbered.numbers.further) count = std::max(count, *number + 1);
  }
  return count;
}

// Empty: the folder's tensor is what the table makes.
std::string difference(const ViewedTensor& made, const ckpt::PayloadSource& payloads,
                       const TensorEntry& found, const OpenedTraining& folder) {
  if (found.shape != made.shape) {
    return "has the shape " + ckpt::shape_text(found.shape) + ", the table gives it " +
           ckpt::shape_text(made.shape);
  }
  if (found.dtype != made.entry->dtype) {
    return "is of type " + std::string(ckpt::name(found.dtype)) + ", the checkpoint's of type " +
           std::string(ckpt::name(made.entry->dtype));
  }
  const bool is_same = ckpt::same_bytes(*made.entry, payloads, found, folder);
  return is_same ? "" : "has other values than " + ckpt::escaped(made.entry->key);
}

RepairedState read_named(const OpenedSource& from, const ConvertOptions& options) {
  if (has_training_state(from.checkpoint)) {
    return read_repaired(from.checkpoint, options, from.repairs);
  }
  throw Error(ErrorCode::Unsupported, {.file = from.checkpoint.shown_path(), .key = {}},
              "is not a training checkpoint of Megatron, whose names a table has");
}

}  // namespace

NamesLearned learn_names(const std::filesystem::path& checkpoint,
                         const std::filesystem::path& folder, const ConvertOptions& given) {
  ConvertOptions options = given;
  options.model_only = true;
  const std::filesystem::path& more = options.hugging_face->args_from;
  if (!more.empty() && ckpt::kind_at(more) == ckpt::EntryKind::Folder) {
    throw Error(ErrorCode::InvalidArgument, {.file = more.string(), .key = {}},
                "is a folder, whose arguments a table would give",
                "to learn one, --args-from takes a FILE");
  }
  const OpenedSource from = open_source(checkpoint, options);
  const OpenedTraining& source = from.checkpoint;
  const RepairedState repaired = read_named(from, options);
  const TrainingState& state = repaired.state;
  const OpenedTraining opened = open_hugging_face(folder, options.base.limits);
  const json config = config_of(opened.folder());
  const FolderTensors both = folder_tensors(opened, config);
  std::vector<LearnedTensor> model = model_tensors(state), found = tensors_in(both.catalog);
  const LearnedSides sides{model, source, both.products ? *both.products : opened};

  json args = arguments_of(state, *options.hugging_face);
  const json sizes = given_sizes(state);
  const LearnedVocabulary vocabulary{rules_of(state), sizes["vocabulary_rows"],
                                     sizes["vocabulary"]};
  if (!args.value("num_layers", json()).is_number_integer()) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args.num_layers"}, "is not known",
                "--args-from FILE says what args lack");
  }
  const ContentIndex index(model, source);
  std::vector<ContentMatch> matches(found.size());
  ckpt::run_jobs(found.size(), ckpt::thread_count(0), [&](size_t i, unsigned) {
    matches[i] = index.match(found[i], sides.folder_payloads);
  });
  const uint32_t layers = args["num_layers"];
  LearnedGroups groups(found, sides, vocabulary, layers);
  groups.explain(matches);

  NamesLearned learned;
  list_groups(groups, found, learned);
  const LearnedModel both_sides{found, rules_of(state), layers,           further_layers(model),
                                args,  config,          vocabulary.tokens};
  const json table = learned_table(groups, both_sides, learned.left_out);
  learned.table = table.dump(2) + "\n";
  const NameTable read = read_table(table, "the table that was learned");
  TableCheck check(read, args, sizes, sides);
  check.run(both.catalog, learned);
  require_pair(check, learned, opened);
  std::ranges::stable_sort(learned.unexplained, {}, &NamesLearned::Note::key);
  return learned;
}

OpenedTraining open_hugging_face(const std::filesystem::path& folder, const ckpt::Limits& limits) {
  OpenedTraining opened = open_checkpoint(folder, {std::nullopt, limits, {}});
  if (opened.catalog().format == ckpt::Format::Safetensors) return opened;
  throw Error(ErrorCode::Unsupported, {.file = opened.shown_path(), .key = {}},
              "holds no safetensors; expected a Hugging Face folder");
}

NamesCheck check_names(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                       const ConvertOptions& given) {
  ConvertOptions options = given;
  if (!options.hugging_face) options.hugging_face.emplace();
  options.model_only = !options.hugging_face->masters;
  look_beside(checkpoint, options);
  const OpenedSource from = open_source(checkpoint, options);
  const OpenedTraining& source = from.checkpoint;
  const RepairedState state = read_named(from, options);
  const HuggingFaceExport made =
      export_model(state.state, *options.hugging_face, options.base.types, &source);
  const ckpt::PayloadSource& payloads = made.payloads ? *made.payloads : source;
  const OpenedTraining opened = open_hugging_face(folder, options.base.limits);
  std::unordered_map<std::string_view, const ViewedTensor*> views;
  for (const auto& [key, value] : made.tensors) views.emplace(key, &value);
  NamesCheck check{made.names, 0, {}};
  for (const TensorEntry& found : opened.catalog().tensors) {
    const auto view = views.find(found.key);
    std::string problem = view == views.end() ? "the table makes no such tensor"
                                              : difference(*view->second, payloads, found, opened);
    if (view != views.end()) views.erase(view);
    if (problem.empty()) ++check.equal_count;
    if (!problem.empty()) check.differences.push_back({found.key, std::move(problem)});
  }
  for (const auto& [key, view] : views) {
    check.differences.push_back({std::string(key), "is not in the folder"});
  }
  std::ranges::sort(check.differences, {}, &NamesCheck::Difference::key);
  return check;
}

}  // namespace optim
