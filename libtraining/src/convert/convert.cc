#include <algorithm>
#include <optional>
#include <utility>

#include <ckpt/hash.h>
#include <ckpt/plain_target.h>
#include <ckpt/root.h>
#include <ckpt/write_target.h>
#include <training/conservation.h>
#include <training/continuation.h>
#include <training/convert.h>
#include <training/logical_inventory.h>
#include <training/megatron_folders.h>

#include "args/bridge_args.h"
#include "args/common_state.h"
#include "args/run_args.h"
#include "convert/cast_states.h"
#include "convert/checks.h"
#include "convert/files_beside.h"
#include "convert/named_conversion.h"
#include "convert/nemo_folder.h"
#include "convert/peft.h"
#include "convert/repaired_source.h"
#include "convert/write_named.h"
#include "grid/glu_rows.h"
#include "huggingface/export.h"
#include "huggingface/import.h"
#include "layouts/job/layer_wise_target.h"
#include "layouts/layouts.h"
#include "proof/proof_file.h"
#include "state/passing_proof.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

// Of a digest's length.
const std::string kDigestToCome(64, '0');

// `hash --logical` of the result, as the source's own proof has it, which is checked with the
// result. Empty: not known.
std::string digest_of_source(const NamedConversion& made, const Job& job,
                             const ConvertOptions& options) {
  const bool is_other = options.model_only || made.filed || options.sizes.vocabulary;
  if (is_other || std::ranges::any_of(job.repairs, is_mended)) return {};
  const auto promise = promise_of(job.source);
  return promise ? promise->logical_digest : "";
}

// Computed by the process that publishes, which under --verify reads everything anyway.
void find_digest(Proof proof, Job& job, const NamedConversion& made,
                 const ConvertOptions& options) {
  job.complete = [proof = std::move(proof), filed = made.filed, &state = made.state,
                  &payloads = job.payloads(), &base = options.base](ckpt::Target& target) mutable {
    const ckpt::Inventory inventory = logical_inventory(filed ? *filed : state);
    proof.logical_digest =
        hex(ckpt::hash(inventory, payloads, named_steps(base, "hashing")).digest);
    for (ckpt::TargetFile& file : target.files) {
      if (file.path == kMegatronFolders.proof_file) file.bytes = text_of(proof);
    }
  };
}

// Beside the iteration, in the root that is written; else in the folder.
void add_proof(Job& job, const ConvertOptions& options, NamedConversion& made) {
  const FiledState& state = made.state;
  Proof proof;
  proof.source = {state.filed.container, state.grid, made.source_states};
  proof.target = {made.spec.format, made.grid, made.states};
  proof.not_carried = made.target.not_carried;
  proof.masters_proven = may_be_proven(state, job) && has_compared_masters(state);
  if (made.spec.as_root) proof.folder = state.folder_name;
  if (made.spec.form.filing == &kRanges) proof.folder = kMegatronFolders.state_folder;
  if (keeps_digest(proof) && options.base.verify) {
    find_digest(proof, job, made, options);
    proof.logical_digest = kDigestToCome;
  } else if (keeps_digest(proof)) {
    proof.logical_digest = digest_of_source(made, job, options);
  }
  auto& files = made.target.files;  // what marks completeness stays the last
  const auto small = std::ranges::find_if(files, [](auto& file) { return file.archives.empty(); });
  files.insert(small, {std::string(kMegatronFolders.proof_file), {}, text_of(proof)});
}

NamedConversion to_safetensors(const FiledState& state, Job& job, const ConvertOptions& options) {
  NamedConversion made{.state = state, .grid = state.grid};
  made.source_states = made.states = count_states(state);
  if (options.on_grids) options.on_grids(state.grid, state.grid, state.facts.expert_count > 0);
  made.target = make_layer_wise_safetensors(state, options.base.keys,
                                            ckpt::is_safetensors_folder(job.destination));
  list_files_beside(job.source, made.target);
  job.check_result =
      layer_wise_safetensors_check(state, job.payloads(), made.target.not_carried, options.base);
  return made;
}

NamedConversion to_hugging_face(const FiledState& state, Job& job, const ConvertOptions& options) {
  SizeChange sizes = options.sizes;
  sizes.vocabulary.reset();
  if (!sizes.empty() || !options.base.keys.empty()) {
    throw Error(
        ErrorCode::InvalidArgument, {},
        "a Hugging Face folder, or PEFT's, holds one whole model under the names of its table",
        "leave out parallel sizes, --include, --exclude and --rename");
  }
  NamedConversion made{.state = state, .grid = state.grid};
  HuggingFaceExport exported = options.peft
                                   ? export_adapter(job.source, state, options)
                                   : export_model(state, *options.hugging_face, options.base.types,
                                                  job.repaired ? nullptr : &job.source);
  if (exported.payloads) job.repaired = exported.payloads;
  made.target = std::move(exported.target);
  made.names = std::move(exported.names);
  std::vector<ckpt::NotCarried> rounded = std::exchange(made.target.not_carried, {});
  made.target.not_carried = lost_in_safetensors(state, {});
  if (!state.chain.empty()) made.target.not_carried.push_back({"the optimizer state", {}});
  for (ckpt::NotCarried& lost : made.target.not_carried) {
    if (lost.is_changed) continue;
    lost.reason = options.peft ? "a folder of PEFT holds the adapter alone"
                               : "a Hugging Face folder holds the model alone";
  }
  std::ranges::move(rounded, std::back_inserter(made.target.not_carried));
  list_files_beside(job.source, made.target, options.peft ? kBridgeConfig : "");
  job.check_result = export_check(std::move(exported.tensors), job.payloads(),
                                  made.target.not_carried, options.base);
  return made;
}

CastStates file_in_types(NamedConversion& made, const FiledAs& target, const Job& job,
                         const ConvertOptions& options) {
  CastStates cast = cast_states(
      made.target_state(), types_of_target(made.target_state(), target, options.form.state_types));
  if (!cast.state) return cast;
  if (job.link) {
    throw Error(ErrorCode::Unsupported, {.file = job.source.shown_path(), .key = {}},
                "optimizer states get another type, so that their files cannot stay",
                "leave out --link, so that files are copied");
  }
  made.filed = cast.state;
  return cast;
}

void tell_types(const CastStates& cast, NamedConversion& made) {
  std::vector<std::string>& casts = made.target.casts;
  casts.insert(casts.end(), cast.widened.begin(), cast.widened.end());
  casts.insert(casts.end(), cast.rounded.begin(), cast.rounded.end());
  for (const std::string& line : cast.widened) {
    made.target.warnings.push_back("optimizer state " + line + ", every value is kept");
  }
  for (const std::string& line : cast.rounded) {
    made.target.not_carried.push_back({"bits of optimizer state " + line, "rounded, as asked"});
    if (!made.continuation) continue;
    made.continuation->next_step = NextStep::Different;
    made.continuation->reasons.push_back("optimizer state was rounded: " + line);
  }
}

NamedConversion to_megatron(const FiledState& state, Job& job, const ConvertOptions& options) {
  NamedConversion made{.state = state, .grid = target_grid(state, options.sizes)};
  made.source_states = count_states(state);
  LayerWiseTargetSpec& spec = made.spec;
  spec.format = options.base.format.value_or(state.filed.container);
  spec.sizes = options.sizes;
  spec.ownership = options.ownership;
  spec.rng = options.rng;
  spec.form = options.form;
  const bool is_nemo = stays_nemo(state, job, options);
  if (is_nemo) spec.form.filing = &kRanges;
  spec.as_root =
      (job.source.was_root() || made.state.folder_name == kRelease) && !options.into && !is_nemo;
  const FiledAs target = is_nemo ? state.filed : choose_filings(state, spec.format, spec.form);
  made.filed = filed_as(state, target, spec.form, made.grid.sizes);
  if (made.filed && !state.chain.empty()) require_equal_in_merged(state, *made.filed, job.source);
  const CastStates cast = file_in_types(made, target, job, options);
  made.rows = target_vocabulary(state, made.grid, spec.sizes);
  if (job.link) {
    require_linkable(job.source, state, spec, made.rows);
    require_rows_in_place(job.source, state, made.grid);
    spec.linked = &job.source;
  }
  if (options.on_grids) options.on_grids(state.grid, made.grid, state.facts.expert_count > 0);
  const TargetJob filed{state, made.target_state(), spec, target, made.grid, made.rows};
  made.target = make_filed_target(filed);
  if (is_nemo) make_nemo_folder(filed, job.source, made.target);
  tell_cut_rows(state, job.payloads(), made.rows, made.target);
  add_files(job.files, spec.as_root ? state.folder_name + "/" : "", made.target);
  if (!state.config.empty()) {
    carry_files_beside(job.source, spec, state.folder_name, made.target);
    made.target.warnings.push_back(
        "Megatron Bridge does not state the data-parallel size: it is told from the files of "
        "ranks");
  }
  const bool is_imported = job.source.catalog().format == ckpt::Format::Safetensors;
  list_files_beside(job.source, made.target, is_imported ? "config.json" : "");
  made.states = made.rows == 0 ? made.source_states : count_states(state, made.rows);
  if (!state.chain.empty()) {
    made.continuation =
        continuation_of(state, {made.grid, made.target_state().filed, !spec.form.buckets.empty(),
                                reseeds_rng(state, made.grid), made.rows});
    for (const RepairFinding& repair : job.repairs) {
      if (!is_mended(repair)) continue;
      made.continuation->next_step = NextStep::Different;
      made.continuation->reasons.push_back("the state was repaired: " +
                                           std::string(name(repair.kind)));
    }
  }
  tell_types(cast, made);
  job.check_result = layer_wise_check(made.target_state(), job.payloads(), {made.rows, made.states},
                                      made.target.not_carried, options.base);
  if (job.link) {
    job.links = link_what_stays(job.source, made.target, has_same_stages(state.grid, made.grid));
  }
  const bool is_promised =
      !options.sizes.empty() || options.base.verify || std::ranges::any_of(job.repairs, is_mended);
  if (is_promised) add_proof(job, options, made);
  return made;
}

// Of a Hugging Face folder, by its own names and later.
ckpt::TypeChange change_types(const Job& job, const ConvertOptions& options, FiledState& state) {
  if (options.base.types.empty() || options.hugging_face) return {};
  if (job.link) {
    throw Error(ErrorCode::InvalidArgument, {}, "--dtype cannot be combined with --link");
  }
  ckpt::TypeChange types(options.base.types);
  cast_weights(types, state);
  for (const ckpt::TypeRule& rule : options.base.types) {
    if (rule.keys.empty()) state_type(rule.type, state);
  }
  return types;
}

ConvertReport convert_layer_wise(const Job& job, const ConvertOptions& options) {
  try {
    if (options.base.format != ckpt::Format::Safetensors && !options.base.keys.empty()) {
      throw Error(ErrorCode::Unsupported, {.file = job.source.shown_path(), .key = {}},
                  "a Megatron checkpoint is converted as a whole: its optimizer refers to all keys",
                  "--to safetensors can select and rename keys");
    }
    return convert_state(job, options, read_repaired(job.source, options, job.repairs));
  } catch (Error& error) {
    if (error.code() == ErrorCode::Unsupported) error.hinted(what_works_on(job.source));
    throw;
  }
}

// A folder that says which architecture it is, or an adapter whose base is given.
bool is_import(const Job& job, const ConvertOptions& options) {
  const std::string suffix = job.destination.extension();
  const bool is_plain_file =
      suffix == ".pt" || suffix == ".pth" || options.base.format == ckpt::Format::Safetensors;
  const bool has_base = !options.imported.args_from.empty();
  const bool is_plain = is_plain_file || options.rank_files;
  return options.base.format && !is_plain && options.imported.names != kOwnNames &&
         ckpt::kind_at(job.source_path) == ckpt::EntryKind::Folder &&
         (states_architecture(job.source) || (has_base && is_adapter(job.source)));
}

void refuse_table(const HuggingFaceOptions& imported) {
  const bool is_default = imported.names == HuggingFaceOptions().names;
  if ((is_default || imported.names == kOwnNames) && imported.args_from.empty()) return;
  throw Error(ErrorCode::InvalidArgument, {},
              "--names and --args-from are for Hugging Face folders: --to huggingface, or a folder "
              "with the config.json of an architecture");
}

ConvertReport convert_imported(Job job, const ConvertOptions& given) {
  ConvertOptions options = given;
  options.base.keys = {};
  if (!given.base.keys.renames.empty()) {
    throw Error(ErrorCode::InvalidArgument, {},
                "--rename cannot be combined with the names of a table",
                "--names none keeps the folder's own names");
  }
  ckpt::KeyRules keys = given.base.keys;
  std::vector<ckpt::KeyName> names;
  for (const TensorEntry& tensor : job.source.catalog().tensors) names.push_back({{}, tensor.key});
  keys.resolve(names);
  HuggingFaceImport made =
      import_folder(job.source, {options.imported, keys, *options.base.format}, options.sizes);
  job.files = std::move(made.files);
  if (!options.sizes.vocabulary) options.sizes.vocabulary = made.state.facts.vocabulary;
  ConvertReport report =
      convert_state(job, options, {std::move(made.state), std::move(made.payloads), {}});
  report.names = std::move(made.names);
  report.peft = is_adapter(job.source);
  report.left_out_count = keys.left_out_count();
  return report;
}

// What it would lose is not known.
[[noreturn]] void refuse_other_megatron(const OpenedTraining& source) {
  if (source.catalog().format == ckpt::Format::TorchDist) source.require_common_state();
  refuse_kind(source, "a LayerWise checkpoint, or a plain state dict, to convert it");
}

}  // namespace

ConvertReport convert_state(Job job, const ConvertOptions& options, RepairedState repaired) {
  const OpenedTraining& source = job.source;
  const bool as_safetensors = options.base.format == ckpt::Format::Safetensors;
  if (as_safetensors) require_form_of_optimizer(options, "a safetensors file");
  if (as_safetensors && options.into) {
    throw Error(ErrorCode::InvalidArgument, {},
                "safetensors cannot be added to a checkpoint root as an iteration");
  }
  correct_vocabulary(options, repaired.state);
  ckpt::TypeChange types = change_types(job, options, repaired.state);
  const FiledState& state = repaired.state;
  if (state.chain.empty()) require_layout_alone(options);
  refuse_contradicted(state, source, options.rules != nullptr);
  job.repaired = std::move(repaired.payloads);
  job.repairs = std::move(repaired.repairs);
  std::vector<std::string> not_proven = states_not_proven(state);
  if (options.base.strict && !not_proven.empty()) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "the optimizer's state is not proven: " + not_proven[0],
                "without --strict it is carried as it is, and listed");
  }
  for (std::string& line : check_arguments(state, source, options)) {
    not_proven.push_back(std::move(line));
  }
  NamedConversion made = options.hugging_face ? to_hugging_face(state, job, options)
                         : as_safetensors     ? to_safetensors(state, job, options)
                         : options.fsdp_dtensor || options.torch_dcp
                             ? to_fsdp(state, job, options)
                             : to_megatron(state, job, options);
  types.report(made.target);
  std::ranges::move(blocks_in_words(state), std::back_inserter(made.target.warnings));
  if (options.rules) {
    for (std::string& line : other_splits(*options.rules)) {
      made.target.warnings.push_back(std::move(line));
    }
  }
  ConvertReport report = write_named(state, job, std::move(made.target), options);
  report.repairs = job.repairs;
  report.not_proven = std::move(not_proven);
  report.names = std::move(made.names);
  for (const ckpt::LinkedFile& link : job.links) {
    report.linked_bytes += std::filesystem::file_size(link.source);
  }
  report.layer_wise = true;
  report.fsdp_dtensor = options.fsdp_dtensor;
  report.torch_dcp = options.torch_dcp;
  report.peft = options.peft;
  report.source_grid = state.grid;
  report.target_grid = made.grid;
  report.continuation = std::move(made.continuation);
  if (report.outcome == ckpt::Outcome::Published && options.base.keys.empty()) {
    report.source_states = std::move(made.source_states);
    report.states = std::move(made.states);
  }
  return report;
}

SizeChange sizes_of(const std::filesystem::path& checkpoint) {
  return sizes_of(open_checkpoint(checkpoint));
}

ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ConvertOptions& given) {
  ConvertOptions options = given;
  if (options.hugging_face) {
    options.base.format = ckpt::Format::Safetensors;
    look_beside(source, options);
    options.model_only = !options.hugging_face->masters;
  }
  const auto [opened, repairs] = open_source(source, options);
  const Job job{opened, source, destination, false, repairs};
  const bool is_trained = has_training_state(opened);
  if (!is_trained && is_import(job, options)) return convert_imported(job, options);
  refuse_table(options.imported);
  if (!is_trained) {
    if (is_megatron(opened)) refuse_other_megatron(opened);
    const bool is_fsdp = options.fsdp_dtensor || options.torch_dcp;
    if (is_fsdp) refuse_kind(opened, "a training checkpoint of Megatron");
    return convert_plain(job, options);
  }
  return convert_layer_wise(job, options);
}

ConvertReport reshard(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ReshardOptions& options) {
  const auto [opened, repairs] = open_source(source, options);
  if (is_megatron(opened) && opened.catalog().format == ckpt::Format::TorchDist) {
    opened.require_common_state();
  }
  if (!has_training_state(opened))
    return reshard_plain({opened, source, destination, options.link, repairs}, options);
  if (options.sizes.empty()) {
    throw Error(ErrorCode::InvalidArgument, {},
                "at least one size is needed: --dp, --tp, --pp, --vpp, --cp, --ep, --etp, "
                "--world-size, a layout of the pipeline, or --sizes-from");
  }
  return convert_layer_wise({opened, source, destination, options.link, repairs}, options);
}

}  // namespace optim
