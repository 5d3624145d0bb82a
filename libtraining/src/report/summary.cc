#include <training/summary.h>

#include <algorithm>
#include <set>

#include <ckpt/folder.h>
#include <ckpt/verify.h>
#include <training/listing.h>
#include <training/megatron_folders.h>
#include <training/value_at.h>
#include <training/verify.h>

#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::Format;

// Above it archives are not looked into one by one: that would take longer than a page may.
constexpr size_t kChunksMax = 4096;
// And above this, where each look is a request to a store: of bytes, those of an entry's ends.
constexpr uint64_t kRequestedBytesMax = 1'000'000, kEndsBytes = 128 << 10;

// --- what it is ---

std::string path_of(const OpenedTraining& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  const std::string& first = catalog.files.at(0).path;
  const bool is_file =
      is_single_file(catalog) || (catalog.format == Format::Safetensors &&
                                  (catalog.files.size() == 1 || first.ends_with(".index.json")));
  return (is_file ? checkpoint.folder() / first : checkpoint.folder()).string();
}

bool is_hugging_face(const OpenedTraining& checkpoint) {
  if (checkpoint.catalog().format != Format::Safetensors) return false;
  const auto format = checkpoint.header_metadata().find("format");
  const bool has_index = std::ranges::any_of(
      checkpoint.catalog().files,
      [](const ckpt::FileEntry& file) { return file.path.ends_with(".index.json"); });
  return has_index || (format != checkpoint.header_metadata().end() && format->second == "pt");
}

std::string variant_of(const OpenedTraining& checkpoint) {
  if (is_megatron(checkpoint)) return "megatron";
  if (checkpoint.catalog().format == Format::TorchDist) return "dcp";
  return is_hugging_face(checkpoint) ? "hf" : "";
}

std::optional<Value> dcp_version(const OpenedTraining& checkpoint) {
  const ValueTree* metadata = checkpoint.dist_metadata();
  return metadata != nullptr ? value_at(metadata->root(), "/@version") : std::nullopt;
}

// --- what is stored ---

void add(uint64_t bytes, Total& total) {
  ++total.count;
  total.count_bytes += bytes;
}

void add_totals(const ckpt::Catalog& catalog, Summary& summary) {
  for (const TensorEntry& tensor : catalog.tensors) {
    summary.stored_tensor_bytes += count_bytes(tensor);
    add(count_bytes(tensor), summary.kinds[std::string(name(role_of(tensor)))]);
    add(count_bytes(tensor), summary.dtypes[std::string(name(tensor.dtype))]);
  }
  for (const ckpt::ObjectEntry& object : catalog.objects) {
    add(object.region ? object.region->bytes.count_bytes : 0, summary.kinds["objects"]);
  }
  std::set<uint32_t> writers;
  for (const ckpt::FileEntry& file : catalog.files) {
    const auto rank = catalog.format == Format::TorchDist ? writer_of(file.path) : std::nullopt;
    if (rank) writers.insert(*rank);
  }
  if (!writers.empty()) summary.writer_count = writers.size();
}

// --- the optimizer ---

// Why the groups could not be read, where that is not how the checkpoint is meant to be.
std::optional<std::string> add_groups(const OpenedTraining& checkpoint, Summary& summary) {
  try {
    summary.groups = find_groups(checkpoint);
    summary.optimizers = describe_optimizers(summary.groups.groups, summary.run);
    summary.step = step_of_groups(summary.groups.groups);
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    if (error.code() == ErrorCode::Unsupported) return std::nullopt;
    return error.what();
  }
}

bool is_step(const TensorEntry& tensor) {
  const bool has_name = tensor.key.ends_with("/common_step") || tensor.key.ends_with("/step") ||
                        tensor.key.ends_with(".step");
  return has_name && tensor.dtype == DType::Float32 && ckpt::element_count(tensor.shape) == 1 &&
         role_of(tensor) == KeyKind::OptimizerState;
}

std::optional<int64_t> read_step(const OpenedTraining& checkpoint) {
  const auto& tensors = checkpoint.catalog().tensors;
  const auto tensor = std::ranges::find_if(tensors, is_step);
  if (tensor == tensors.end()) return std::nullopt;
  float step = 0;
  try {
    step = checkpoint.read_as<float>(*tensor).front();
  } catch (const Error&) {
    return std::nullopt;  // what is wrong with it is the status's to say
  }
  const bool is_count = step >= 0 && step < 1e15F;
  return is_count ? std::optional(static_cast<int64_t>(step)) : std::nullopt;
}

std::vector<std::string> states_of(const Contents& contents) {
  std::set<std::string> states;
  for (const LogicalTensor& tensor : contents.tensors) {
    if (!tensor.state.empty()) states.insert(tensor.state);
  }
  return {states.begin(), states.end()};
}

// --- whether it is whole ---

bool is_too_large_to_look_into(const OpenedTraining& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  uint64_t chunks = 0, file_bytes = 0;
  for (const TensorEntry& tensor : catalog.tensors) chunks += tensor.chunks.size();
  if (chunks > kChunksMax) return true;
  const bool is_here = ckpt::scheme_of(checkpoint.folder().native()).empty();
  if (is_here || catalog.format == Format::Safetensors) return false;  // which has no entries
  for (const ckpt::FileEntry& file : catalog.files) file_bytes += file.count_bytes;
  return std::min(file_bytes, chunks * kEndsBytes) > kRequestedBytesMax;
}

void add_problem(Status& status, const std::string& problem) {
  if (status.problem_count++ == 0) status.problem = problem;
}

void take_findings(const ckpt::Findings& findings, Summary& summary) {
  for (const ckpt::FileAccount& file : findings.files) {
    if (file.beside.empty()) add(file.file_bytes, summary.files);
  }
  for (const ckpt::Finding& finding : findings.findings) {
    if (finding.severity != ckpt::Severity::Damage) continue;
    add_problem(summary.status, Error(ErrorCode::Corrupt, finding.where, finding.problem).what());
  }
}

// All that is missing or ends early, first what the checkpoint itself is made of.
std::vector<std::string> incomplete_files(const OpenedTraining& checkpoint,
                                          const std::vector<std::string>& missing,
                                          const ckpt::Findings& findings) {
  std::vector<std::string> lines;
  std::set<std::string> named;
  for (const ckpt::FileEntry* file : lacking_files(checkpoint.catalog())) {
    named.insert(checkpoint.shown_name(file->path));
    lines.push_back(ckpt::escaped(file->path) + (file->is_missing ? " " : ": ") + file->lack);
  }
  for (const std::string& path : missing) {
    if (!named.insert(checkpoint.shown_name(path)).second) continue;
    lines.push_back(ckpt::escaped(path) + " is missing");
  }
  for (const ckpt::Finding& finding : findings.findings) {
    if (!finding.is_incomplete || !named.insert(finding.where.file).second) continue;
    lines.push_back(ckpt::escaped(finding.where.file) + ": " + finding.problem);
  }
  return lines;
}

// `groups_problem`: what add_groups() returned.
void add_status(const OpenedTraining& checkpoint, const std::optional<std::string>& groups_problem,
                Summary& summary) {
  Status& status = summary.status;
  status.missing = missing_files(checkpoint);
  const bool is_large = is_too_large_to_look_into(checkpoint);
  VerifyOptions options;
  options.quick = true;
  // Where the groups do not fit a quick check may have to read values to tell why.
  options.files_only = !status.missing.empty() || is_large || groups_problem.has_value();
  const VerifyReport report = verify(checkpoint, options);
  take_findings(report.findings, summary);
  status.incomplete = incomplete_files(checkpoint, status.missing, report.findings);
  if (!status.incomplete.empty()) {
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

Summary summarize(const OpenedTraining& checkpoint) {
  Summary summary;
  summary.path = path_of(checkpoint);
  summary.run = run_facts(checkpoint);
  summary.trainer = trainer_facts(checkpoint);
  summary.variant = variant_of(checkpoint);
  summary.sharding = optimizer_sharding(checkpoint);
  summary.dcp_version = dcp_version(checkpoint);
  add_totals(checkpoint.catalog(), summary);
  summary.parts = RankParts(checkpoint);
  summary.file_of_set = file_of_set(checkpoint);
  const auto groups_problem = add_groups(checkpoint, summary);
  summary.contents = list_contents(checkpoint, summary.groups.state.get());
  if (summary.contents.uncounted_reason.empty()) {
    summary.parameter_count = count_parameters(summary.contents.tensors);
  }
  summary.modules = make_module_table(summary.contents.tensors);
  summary.states = states_of(summary.contents);
  if (!summary.step) summary.step = read_step(checkpoint);
  if (!is_megatron(checkpoint)) summary.beside = files_beside(checkpoint);
  add_status(checkpoint, groups_problem, summary);
  return summary;
}

}  // namespace optim
