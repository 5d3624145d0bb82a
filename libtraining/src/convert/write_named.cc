// Writes a target: masters are proven as their bytes pass, or it is told that they are not.
#include "convert/write_named.h"

#include <optional>
#include <span>
#include <string>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/root.h>
#include <ckpt/write_target.h>
#include <training/megatron_folders.h>

#include "convert/repaired_source.h"
#include "convert/second_moments.h"
#include "convert/unproven.h"
#include "state/passing_proof.h"
#include "verify/checks.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;

void refuse_ambiguity(const std::vector<AmbiguousParam>& ambiguous, const FiledState& view) {
  if (ambiguous.empty()) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = ambiguous[0].name},
              "its master rounds to the weight of '" + ckpt::escaped(ambiguous[0].also_fits[0]) +
                  "' as well, so its values do not prove its name",
              "without --strict " + naming_of(view) + " decides, and such parameters are listed");
}

// Carried as it is; nobody can say which of the two is right.
void tell_other_iterations(const OpenedTraining& source, ckpt::Target& target, bool strict) {
  for (const ckpt::Finding& finding : find_other_iterations(source)) {
    if (strict) throw Error(ErrorCode::Unsupported, finding.where, finding.problem, finding.hint);
    target.warnings.push_back(ckpt::escaped(finding.where.file) + ": " + finding.problem);
  }
}

}  // namespace

ConvertReport write(const Job& job, ckpt::Target target, const ConvertOptions& options) {
  const auto place = options.into ? place_in_root(job.destination, job.source) : job.destination;
  if (options.into && !std::filesystem::is_directory(job.destination)) {
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

namespace {

// Numbered masters are proven to belong to their names with the bytes that are copied.
ConvertReport write_proven(const FiledState& view, Job job, ckpt::Target target,
                           const ConvertOptions& options) {
  // Who finishes finds parts that were proven before they were complete.
  if (options.base.finish && !options.base.strict) return write(job, std::move(target), options);
  // What is ambiguous is known for sure only where one process proves all.
  const bool alone = options.base.strict || options.base.dry_run;
  const ckpt::ExecuteOptions& execute = options.base.execute;
  const ProofOptions proof{execute.threads, alone ? ckpt::Share() : options.base.share,
                           execute.stop, execute.on_progress, job.repaired.get()};
  std::optional<PassingProof> passed;
  if (!options.base.dry_run) passed.emplace(view, job.source);
  std::vector<AmbiguousParam> ambiguous;
  const auto prove = [&] {
    ambiguous = prove_rest(view, job.source, proof, passed ? &*passed : nullptr);
  };
  job.before_publishing = [&, check = std::move(job.before_publishing)] {
    prove();
    if (check) check();
    if (options.base.strict) refuse_ambiguity(ambiguous, view);
  };
  // A plan of torch_dist reads no payload: names are in the files.
  if (options.base.dry_run && are_names_computed(view)) job.before_publishing();
  ConvertOptions watched = options;
  watched.base.execute.on_read = [&](const ckpt::StorageRegion& located, uint64_t offset_bytes,
                                     std::span<const std::byte> bytes) {
    passed->note(located, offset_bytes, bytes);
    if (options.base.execute.on_read) options.base.execute.on_read(located, offset_bytes, bytes);
  };
  try {
    ConvertReport report = write(job, std::move(target), watched);
    report.ambiguous = std::move(ambiguous);
    report.masters_proven = report.outcome == ckpt::Outcome::Published;
    return report;
  } catch (const Error& error) {
    // The first wrong master is told, not the first that was found, nor which bytes are damaged.
    if (error.code() == ErrorCode::Corrupt) prove();
    throw;
  }
}

}  // namespace

bool may_be_proven(const FiledState& view, const Job& job) {
  if (view.chain.empty() || why_not_proven(view, job.source)) return false;
  return are_names_computed(view) || !job.link;
}

namespace {

// Names that were computed and are not proven are told; under --strict they are refused.
ConvertReport write_unproven(const FiledState& view, Job job, ckpt::Target target,
                             const ConvertOptions& options) {
  if (are_names_computed(view)) {
    const std::string problem =
        "the names of masters are not proven: " + *why_not_proven(view, job.source);
    if (options.base.strict) {
      throw Error(ErrorCode::Unsupported, {.file = job.source.shown_path(), .key = {}}, problem,
                  "without --strict " + naming_of(view) + " decides");
    }
    target.warnings.push_back(problem);
  }
  check_unproven(view, job.source, options.base.execute.stop);
  return write(job, std::move(target), options);
}

// What passes is looked at on its way; nothing that was found wrong is published.
ConvertReport write_looked_at(const FiledState& view, Job job, ckpt::Target target,
                              const ConvertOptions& options) {
  if (!may_be_proven(view, job)) {
    return why_not_proven(view, job.source) ? write_unproven(view, job, std::move(target), options)
                                            : write(job, std::move(target), options);
  }
  try {
    return write_proven(view, job, std::move(target), options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt || !may_be_displaced(view, job.repairs)) throw;
    throw Error(error.code(), error.where(), error.problem(),
                "--repair lists what could be mended, as of Megatron's issue 5077");
  }
}

}  // namespace

ConvertReport write_named(const FiledState& view, Job job, ckpt::Target target,
                          const ConvertOptions& options) {
  if (options.base.dry_run || view.chain.empty()) {
    return write_looked_at(view, std::move(job), std::move(target), options);
  }
  SecondMoments moments(view);
  job.before_publishing = [&] { moments.refuse_negative(job.source); };
  ConvertOptions watched = options;
  watched.base.execute.on_read =
      [&moments](const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<const std::byte> bytes) { moments.note(located, offset_bytes, bytes); };
  return write_looked_at(view, job, std::move(target), watched);
}

}  // namespace optim
