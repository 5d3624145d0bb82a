// Writes a target: masters are proven as their bytes pass, or it is told that they are not.
#include "convert/write_named.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include <ckpt/folder.h>
#include <ckpt/root.h>
#include <ckpt/write_target.h>
#include <training/convert.h>
#include <training/megatron_folders.h>
#include <training/opened_training.h>
#include <training/prove_assignment.h>
#include <training/training_state.h>

#include "args/common_state.h"
#include "convert/checks.h"
#include "convert/repaired_source.h"
#include "grid/glu_rows.h"
#include "layouts/layouts.h"
#include "model/tensor_names.h"
#include "state/passing_proof.h"
#include "state/value_scan.h"
#include "state/watched_ranges.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {

namespace {

const std::string kCommonName(kMegatronFolders.common_file);
constexpr const char* kWithoutLink = "leave out --link, so that files are copied";

[[noreturn]] void refuse_link(const OpenedTraining& source, const std::string& why) {
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
              "cannot be linked: " + why, kWithoutLink);
}

// Looks for negative second moments among the bytes that are copied anyway: a mean of squares that
// is below zero was damaged, and the next step would make its parameter NaN. Safe to use from many
// threads. An element that is read in two parts is not looked at.
class SecondMoments {
 public:
  // Must outlive it.
  explicit SecondMoments(const TrainingState& state) {
    for (const TrainedParam& param : state.params) {
      for (const StateTensor& kept : param.states) {
        if (is_second_moment_name(kept.name) && is_scanned(kept.value->dtype)) add(*kept.value);
      }
    }
    watched_.put_in_order();
  }

  // As ExecuteOptions::on_read.
  void note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
            std::span<const std::byte> bytes) {
    watched_.for_parts(located, offset_bytes, bytes,
                       [this](const auto& range, uint64_t begin_bytes, auto part) {
                         note_part(range.of, begin_bytes - range.begin_bytes, part);
                       });
  }

  // Throws Corrupt for what was seen, the first by its place in the files.
  void refuse_negative(const OpenedTraining& source) const;

 private:
  // A chunk that is watched.
  struct Watched {
    const TensorEntry* tensor = nullptr;
    const Chunk* chunk = nullptr;
  };
  using Place = std::tuple<uint32_t, uint64_t, uint64_t>;  // file, region, in its payload

  void add(const TensorEntry& tensor) {
    for (const Chunk& chunk : tensor.chunks) {
      if (chunk.view || chunk.region.wrapping == ckpt::Wrapping::ZstdTorchSave) continue;
      const uint64_t count_bytes =
          ckpt::element_count(chunk.box.sizes) * ckpt::bytes_per_element(tensor.dtype);
      watched_.add(chunk, count_bytes, {&tensor, &chunk});
    }
  }
  void note_part(const Watched& watched, uint64_t begin_bytes, std::span<const std::byte> bytes);

  WatchedStorages<Watched> watched_;
  std::mutex mutex_;
  std::map<Place, std::pair<Watched, uint64_t>> negative_;  // how many
};

void SecondMoments::note_part(const Watched& watched, uint64_t begin_bytes,
                              std::span<const std::byte> bytes) {
  const DType dtype = watched.tensor->dtype;
  const uint64_t element_bytes = ckpt::bytes_per_element(dtype);
  const uint64_t cut_bytes = (element_bytes - begin_bytes % element_bytes) % element_bytes;
  if (cut_bytes >= bytes.size()) return;
  const auto whole =
      bytes.subspan(cut_bytes, (bytes.size() - cut_bytes) / element_bytes * element_bytes);
  const ValueScan values = scan(dtype, whole, Wanted::FiniteAndNotNegative);
  if (values.negative.count == 0) return;
  const ckpt::StorageRegion& region = watched.chunk->region;
  const std::scoped_lock lock(mutex_);
  auto& [which, count] =
      negative_[{region.file, region.bytes.offset_bytes, watched.chunk->payload_offset_bytes}];
  which = watched;
  count += values.negative.count;
}

void SecondMoments::refuse_negative(const OpenedTraining& source) const {
  if (negative_.empty()) return;
  const auto& [watched, count] = negative_.begin()->second;
  const std::string values = count == 1 ? " value is" : " values are";
  throw Error(ErrorCode::Corrupt,
              {source.file_name(watched.chunk->region.file), std::nullopt, watched.tensor->key},
              std::to_string(count) + values + " negative, which a second moment cannot be",
              "ckpt-inspect verify lists all; --model-only carries the weights");
}

void refuse_ambiguity(const std::vector<AmbiguousParam>& ambiguous, const FiledState& state) {
  if (ambiguous.empty()) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = ambiguous[0].name},
              "its master rounds to the weight of '" + ckpt::escaped(ambiguous[0].also_fits[0]) +
                  "' as well, so its values do not prove its name",
              "without --strict " + naming_of(state) + " decides, and such parameters are listed");
}

// Carried as it is; nobody can say which of the two is right.
void tell_other_iterations(const OpenedTraining& source, ckpt::Target& target, bool strict) {
  for (const ckpt::Finding& finding : find_other_iterations(source)) {
    if (strict) throw Error(ErrorCode::Unsupported, finding.where, finding.problem, finding.hint);
    target.warnings.push_back(ckpt::escaped(finding.where.file) + ": " + finding.problem);
  }
}

// Numbered masters are proven to belong to their names with the bytes that are copied.
ConvertReport write_proven(const FiledState& state, Job job, ckpt::Target target,
                           const ConvertOptions& options) {
  // Who finishes finds parts that were proven before they were complete.
  if (options.base.finish && !options.base.strict) return write(job, std::move(target), options);
  const bool has_masters = std::ranges::any_of(
      state.params, [](const TrainedParam& param) { return param.master != nullptr; });
  if (has_masters && !has_compared_masters(state)) {
    target.warnings.push_back("masters are not compared with their weights");
  }
  // What is ambiguous is known for sure only where one process proves all.
  const bool alone = options.base.strict || options.base.dry_run;
  const ckpt::ExecuteOptions& execute = options.base.execute;
  const ProofOptions proof{execute.threads, alone ? ckpt::Share() : options.base.share,
                           execute.stop, execute.on_progress, job.repaired.get()};
  std::optional<PassingProof> passed;
  if (!options.base.dry_run) passed.emplace(state, job.source);
  std::vector<AmbiguousParam> ambiguous;
  const auto prove = [&] {
    ambiguous = prove_rest(state, job.source, proof, passed ? &*passed : nullptr);
  };
  job.before_publishing = [&, check = std::move(job.before_publishing)] {
    prove();
    if (check) check();
    if (options.base.strict) refuse_ambiguity(ambiguous, state);
  };
  // A plan of torch_dist reads no payload: names are in the files.
  if (options.base.dry_run && are_names_computed(state)) job.before_publishing();
  ConvertOptions watched = options;
  watched.base.execute.on_read = [&](const ckpt::StorageRegion& located, uint64_t offset_bytes,
                                     std::span<const std::byte> bytes) {
    passed->note(located, offset_bytes, bytes);
    if (options.base.execute.on_read) options.base.execute.on_read(located, offset_bytes, bytes);
  };
  try {
    ConvertReport report = write(job, std::move(target), watched);
    report.ambiguous = std::move(ambiguous);
    report.masters_proven =
        report.outcome == ckpt::Outcome::Published && has_compared_masters(state);
    return report;
  } catch (const Error& error) {
    // The first wrong master is told, not the first that was found, nor which bytes are damaged.
    if (error.code() == ErrorCode::Corrupt) prove();
    throw;
  }
}

// Names that were computed and are not proven are told; under --strict they are refused.
ConvertReport write_unproven(const FiledState& state, Job job, ckpt::Target target,
                             const ConvertOptions& options) {
  if (are_names_computed(state)) {
    const std::string problem =
        "the names of masters are not proven: " + *why_not_proven(state, job.source);
    if (options.base.strict) {
      throw Error(ErrorCode::Unsupported, {.file = job.source.shown_path(), .key = {}}, problem,
                  "without --strict " + naming_of(state) + " decides");
    }
    target.warnings.push_back(problem);
  }
  check_unproven(state, job.source, options.base.execute.stop);
  return write(job, std::move(target), options);
}

// What passes is looked at on its way; nothing that was found wrong is published.
ConvertReport write_looked_at(const FiledState& state, Job job, ckpt::Target target,
                              const ConvertOptions& options) {
  if (!may_be_proven(state, job)) {
    return why_not_proven(state, job.source)
               ? write_unproven(state, job, std::move(target), options)
               : write(job, std::move(target), options);
  }
  try {
    return write_proven(state, job, std::move(target), options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt) throw;
    std::string hint = what_may_mend(state, job.repairs);
    if (hint.empty()) throw;
    throw Error(error.code(), error.where(), error.problem(), std::move(hint));
  }
}

}  // namespace

void require_linkable(const OpenedTraining& source, const FiledState& state,
                      const LayerWiseTargetSpec& spec, uint64_t vocabulary_rows) {
  if (spec.format != ckpt::Format::TorchDist || state.filed.container != ckpt::Format::TorchDist) {
    throw Error(ErrorCode::Unsupported, {},
                "only torch_dist can be linked: in `torch`, files hold what their rank owns",
                kWithoutLink);
  }
  const FiledAs target = choose_filings(state, spec.format, spec.form);
  const bool is_bucketed =
      target.has(kBuckets) || std::ranges::any_of(state.filed.optimizers, &Filing::in_order);
  if (is_bucketed || target != state.filed) {
    refuse_link(source, is_bucketed ? "flat buckets are those of the old ranks"
                                    : "the form of the optimizer's state changes");
  }
  if (&keys_of(source) != &source.catalog()) {
    refuse_link(source, "NeMo's files have other keys than Megatron-LM's");
  }
  if (source.document(kCommonName) == nullptr) {
    refuse_link(source, "its common state, which changes, is in the store");
  }
  if (vocabulary_rows != target_vocabulary(state, state.grid, {})) {
    refuse_link(source, "the padding of the vocabulary changes with these sizes");
  }
}

void require_rows_in_place(const OpenedTraining& source, const FiledState& state,
                           const RunGrid& grid) {
  if (!cuts_blocks_anew(state, grid)) return;
  refuse_link(source,
              "rows of gate and up alternate in blocks, whose order in the files is of the number "
              "of tensor-parallel ranks");
}

bool has_same_stages(const RunGrid& a, const RunGrid& b) {
  return a.sizes.tensor_parallel == b.sizes.tensor_parallel &&
         a.sizes.pipeline_parallel == b.sizes.pipeline_parallel;
}

Links link_what_stays(const OpenedTraining& source, ckpt::Target& target, bool same_places) {
  if (!ckpt::scheme_of(source.folder().native()).empty()) {
    throw Error(ErrorCode::Unsupported, {.file = source.folder().string(), .key = {}},
                "is in an object store; --link makes links to files of this machine",
                "leave out --link");
  }
  std::filesystem::path folder;  // of the iteration, in a root
  for (const ckpt::TargetFile& file : target.files) {
    if (file.path.ends_with(kCommonName)) folder = std::filesystem::path(file.path).parent_path();
  }
  std::erase_if(target.files, [&](const ckpt::TargetFile& file) {
    const std::string name = std::filesystem::path(file.path).filename();
    const bool is_metadata = name == ".metadata" || name.ends_with(".distcp");
    return name == kMegatronFolders.backend_file || (same_places && is_metadata);
  });
  std::set<std::string> written;
  for (const ckpt::TargetFile& file : target.files) written.insert(file.path);
  Links links;
  for (const std::filesystem::path& file : source.files()) {
    const std::string path = (folder / file.lexically_relative(source.folder())).string();
    if (!written.contains(path)) links.push_back({file, path});
  }
  return links;
}

ConvertReport write(const Job& job, ckpt::Target target, const ConvertOptions& options) {
  const auto place = options.into ? place_in_root(job.destination, job.source) : job.destination;
  if (options.into && ckpt::kind_at(job.destination) != ckpt::EntryKind::Folder) {
    throw Error(ErrorCode::NotFound, {.file = job.destination.string(), .key = {}},
                "is not a folder, so no iteration can be added to it");
  }
  if (options.into) {  // throws now what set_latest() would
    ckpt::latest_iteration(job.destination, kMegatronFolders);
  }
  tell_other_iterations(job.source, target, options.base.strict);
  ConvertReport report;
  static_cast<ckpt::ConvertReport&>(report) = ckpt::write_target(
      std::move(target),
      {job.payloads(), job.source_path, &job.source, job.links, job.before_publishing, job.complete,
       job.check_result, job.repaired != nullptr},
      place, options.base);
  report.source_format = job.source.catalog().format;
  // Who published may have ended before this.
  const bool is_in_place = report.outcome == ckpt::Outcome::Published ||
                           report.outcome == ckpt::Outcome::AlreadyPublished;
  if (options.into && is_in_place) {
    ckpt::set_latest(job.destination, place.filename().string(), kMegatronFolders);
  }
  return report;
}

bool may_be_proven(const FiledState& state, const Job& job) {
  if (state.chain.empty() || why_not_proven(state, job.source)) return false;
  return are_names_computed(state) || !job.link;
}

ConvertReport write_named(const FiledState& state, Job job, ckpt::Target target,
                          const ConvertOptions& options) {
  for (const std::string& name : state.maybe_equal_args) {
    target.warnings.push_back("args." + name + ": " + kMaybeOneMember + "; the first is kept");
  }
  if (options.base.dry_run || state.chain.empty()) {
    return write_looked_at(state, std::move(job), std::move(target), options);
  }
  SecondMoments moments(state);
  job.before_publishing = [&] { moments.refuse_negative(job.source); };
  ConvertOptions watched = options;
  watched.base.execute.on_read =
      [&moments](const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<const std::byte> bytes) { moments.note(located, offset_bytes, bytes); };
  return write_looked_at(state, job, std::move(target), watched);
}

// The folder that was opened tells the iteration's name.
std::filesystem::path place_in_root(const std::filesystem::path& root,
                                    const OpenedTraining& source) {
  if (!source.catalog().iteration) {
    const auto files = source.files();
    const auto& shown = files.size() == 1 ? files.front() : source.folder();
    throw Error(ErrorCode::InvalidArgument, {.file = shown.string(), .key = {}},
                "is not an iteration, so it cannot be added to a checkpoint root");
  }
  return root / source.source().resolved(source.folder()).filename();
}

}  // namespace optim
