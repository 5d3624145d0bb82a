#include "inspect/overview.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <ckpt/error.h>
#include <optim/megatron_folders.h>
#include <optim/verify.h>

#include "inspect/listing.h"
#include "inspect/value_at.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using ckpt::ErrorCode;
using ckpt::Format;
using optim::KeyKind;

// Above it archives are not looked into one by one: that would take longer than a page may.
constexpr size_t kChunksMax = 4096;

// --- what it is ---

std::string path_of(const ckpt::Checkpoint& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  const std::string& first = catalog.files.at(0).path;
  const bool is_file =
      is_single_file(catalog) || (catalog.format == Format::Safetensors &&
                                  (catalog.files.size() == 1 || first.ends_with(".index.json")));
  return (is_file ? checkpoint.folder() / first : checkpoint.folder()).string();
}

bool is_hugging_face(const ckpt::Checkpoint& checkpoint) {
  if (checkpoint.catalog().format != Format::Safetensors) return false;
  const auto format = checkpoint.header_metadata().find("format");
  const bool has_index = std::ranges::any_of(
      checkpoint.catalog().files,
      [](const ckpt::FileEntry& file) { return file.path.ends_with(".index.json"); });
  return has_index || (format != checkpoint.header_metadata().end() && format->second == "pt");
}

std::string variant_of(const ckpt::Checkpoint& checkpoint) {
  if (optim::is_megatron(checkpoint)) return "megatron";
  if (checkpoint.catalog().format == Format::TorchDist) return "dcp";
  return is_hugging_face(checkpoint) ? "hf" : "";
}

std::string optimizer_words(const Overview& overview, Format format) {
  const bool has_state = overview.kinds.contains(std::string(name(KeyKind::OptimizerState)));
  if (overview.sharding.empty()) return has_state ? "" : ", no optimizer state";
  if (overview.sharding == "replicated") return ", optimizer state not sharded";
  if (overview.sharding != "layer_wise") return ", DistributedOptimizer (ZeRO-1)";
  if (format != Format::TorchDist) return ", LayerWise optimizer";
  return overview.run.has_common_file ? ", LayerWise optimizer, April 2026"
                                      : ", LayerWise optimizer, August 2026";
}

std::string format_words(const ckpt::Checkpoint& checkpoint, const Overview& overview) {
  const Format format = checkpoint.catalog().format;
  if (overview.format_variant == "megatron") {
    return "Megatron " + std::string(name(format)) + optimizer_words(overview, format);
  }
  switch (format) {
    case Format::Torch: return "torch.save file";
    case Format::TorchDist: return "PyTorch DCP (torch_dist)";
    case Format::Safetensors: break;
  }
  return overview.format_variant == "hf" ? "safetensors, as Hugging Face writes it" : "safetensors";
}

void add_writers(const ckpt::Checkpoint& checkpoint, Overview& overview) {
  if (!overview.run.checkpoint_version.empty()) {
    overview.writers.emplace_back("megatron_checkpoint_version", overview.run.checkpoint_version);
  }
  const ckpt::ValueTree* metadata = checkpoint.dist_metadata();
  const auto version = metadata ? value_at(metadata->root(), "/@version") : std::nullopt;
  if (version) {
    overview.writers.emplace_back("dcp_metadata_version", version->is(ckpt::Kind::Str)
                                                              ? ckpt::escaped(version->text())
                                                              : value_text(*version));
  }
}

// --- what is stored ---

// "__3_0.distcp" is of rank 3.
std::optional<uint64_t> writer_of(std::string_view path) {
  if (!path.starts_with("__") || !path.ends_with(".distcp")) return std::nullopt;
  path.remove_prefix(2);
  uint64_t rank = 0;
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), rank);
  return error == std::errc() && *end == '_' ? std::optional(rank) : std::nullopt;
}

void add_totals(const ckpt::Catalog& catalog, Overview& overview) {
  for (const ckpt::TensorEntry& tensor : catalog.tensors) {
    overview.stored_tensor_bytes += count_bytes(tensor);
    overview.kinds[std::string(name(optim::role_of(tensor)))].add(count_bytes(tensor));
    overview.dtypes[std::string(name(tensor.dtype))].add(count_bytes(tensor));
  }
  for (const ckpt::ObjectEntry& object : catalog.objects) {
    overview.kinds["objects"].add(object.region ? object.region->bytes.count_bytes : 0);
  }
  std::set<uint64_t> writers;
  for (const ckpt::FileEntry& file : catalog.files) {
    if (const auto rank = writer_of(file.path)) writers.insert(*rank);
  }
  if (!writers.empty()) overview.writer_count = writers.size();
}

// --- the optimizer ---

// Why the groups could not be read, where that is not how the checkpoint is meant to be.
std::optional<std::string> add_groups(const ckpt::Checkpoint& checkpoint, Overview& overview) {
  try {
    overview.groups = optim::describe_groups(checkpoint);
    overview.optimizers = describe_optimizers(overview.groups.groups, overview.run);
    overview.step = step_of_groups(overview.groups.groups);
    return std::nullopt;
  } catch (const ckpt::Error& error) {
    const bool is_none = error.code() == ErrorCode::NotFound && error.where().key.empty();
    if (error.code() == ErrorCode::IoFailure) throw;
    if (is_none || error.code() == ErrorCode::Unsupported) return std::nullopt;
    return error.what();
  }
}

bool is_step(const ckpt::TensorEntry& tensor) {
  const bool has_name = tensor.key.ends_with("/common_step") || tensor.key.ends_with("/step") ||
                        tensor.key.ends_with(".step");
  return has_name && tensor.dtype == ckpt::DType::Float32 &&
         ckpt::element_count(tensor.shape) == 1 &&
         optim::role_of(tensor) == KeyKind::OptimizerState;
}

std::optional<int64_t> read_step(const ckpt::Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.catalog().tensors;
  const auto tensor = std::ranges::find_if(tensors, is_step);
  if (tensor == tensors.end()) return std::nullopt;
  float step = 0;
  try {
    step = checkpoint.read_as<float>(*tensor).front();
  } catch (const ckpt::Error&) {
    return std::nullopt;  // what is wrong with it is the status's to say
  }
  const bool is_count = step >= 0 && step < 1e15F;
  return is_count ? std::optional(static_cast<int64_t>(step)) : std::nullopt;
}

std::vector<std::string> states_of(const optim::Contents& contents) {
  std::set<std::string> states;
  for (const optim::LogicalTensor& tensor : contents.tensors) {
    if (!tensor.state.empty()) states.insert(tensor.state);
  }
  return {states.begin(), states.end()};
}

// --- whether it is whole ---

size_t chunk_count(const ckpt::Catalog& catalog) {
  size_t count = 0;
  for (const ckpt::TensorEntry& tensor : catalog.tensors) count += tensor.chunks.size();
  return count;
}

void add_problem(Status& status, const std::string& problem) {
  if (status.problem_count++ == 0) status.problem = problem;
}

void take_findings(const ckpt::Findings& findings, Overview& overview) {
  for (const ckpt::FileAccount& file : findings.files) overview.files.add(file.file_bytes);
  for (const ckpt::Finding& finding : findings.findings) {
    if (finding.severity != ckpt::Severity::Damage) continue;
    add_problem(overview.status,
                ckpt::Error(ErrorCode::Corrupt, finding.where, finding.problem).what());
  }
}

// `groups_problem`: what add_groups() returned.
void add_status(const ckpt::Checkpoint& checkpoint,
                const std::optional<std::string>& groups_problem, Overview& overview) {
  Status& status = overview.status;
  status.missing = optim::missing_files(checkpoint);
  const bool is_large = chunk_count(checkpoint.catalog()) > kChunksMax;
  optim::VerifyOptions options;
  options.quick = true;
  // Where the groups do not fit a quick check may have to read values to tell why.
  options.files_only = !status.missing.empty() || is_large || groups_problem.has_value();
  take_findings(optim::verify(checkpoint, options).findings, overview);
  if (!status.missing.empty()) {
    status.health = Health::Incomplete;
  } else if (status.problem_count != 0) {
    status.health = Health::Damaged;
  } else if (groups_problem) {
    add_problem(status, *groups_problem);
    status.health = Health::Unsure;
  } else if (is_large) {
    status.health = Health::FilesPresent;
  }
}

}  // namespace

std::string_view name(Health health) {
  static constexpr std::string_view kNames[] = {"complete", "files_present", "unsure", "incomplete",
                                                "damaged"};
  return kNames[static_cast<size_t>(health)];
}

Overview make_overview(const ckpt::Checkpoint& checkpoint, bool is_of_tracker) {
  Overview overview;
  overview.path = path_of(checkpoint);
  overview.is_of_tracker = is_of_tracker;
  overview.run = optim::run_facts(checkpoint);
  overview.format_variant = variant_of(checkpoint);
  overview.sharding = optim::optimizer_sharding(checkpoint);
  add_writers(checkpoint, overview);
  add_totals(checkpoint.catalog(), overview);
  overview.format = format_words(checkpoint, overview);
  const auto groups_problem = add_groups(checkpoint, overview);
  overview.contents = optim::list_contents(checkpoint, overview.groups.view.get());
  if (overview.contents.uncounted_reason.empty()) {
    overview.parameter_count = count_parameters(overview.contents.tensors);
  }
  overview.modules = make_module_table(overview.contents.tensors);
  overview.states = states_of(overview.contents);
  if (!overview.step) overview.step = read_step(checkpoint);
  add_status(checkpoint, groups_problem, overview);
  return overview;
}

}  // namespace tools::inspect
