#include <optim/verify.h>

#include <algorithm>
#include <optional>

#include <ckpt/error.h>

#include "layout/group_check.h"
#include "layout/iteration_check.h"
#include "layout/left_out.h"
#include "layout/rank_folder_check.h"
#include "layout/state_check.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

// A file that the checkpoint names and that is missing makes the checkpoint corrupt; a path that is
// not there does not.
ckpt::Checkpoint open(const fs::path& path, const VerifyOptions& options) {
  try {
    return ckpt::Checkpoint::open(path, {.iteration = options.iteration, .limits = options.limits});
  } catch (const ckpt::Error& error) {
    const bool is_inside = error.code() == ckpt::ErrorCode::NotFound && fs::exists(path) &&
                           !error.where().file.empty() && error.where().file.front() != '/' &&
                           !fs::path(error.where().file).has_root_path() &&
                           !error.where().file.starts_with(path.string());
    if (!is_inside) throw;
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, error.where(), error.problem(),
                      "the checkpoint names this file");
  }
}

// What two checks find is told once.
void drop_repeated(std::vector<ckpt::Finding>& sorted) {
  const auto are_same = [](const ckpt::Finding& a, const ckpt::Finding& b) {
    return a.check == b.check && a.where.file == b.where.file && a.where.key == b.where.key &&
           a.where.offset_bytes == b.where.offset_bytes && a.problem == b.problem;
  };
  sorted.erase(std::unique(sorted.begin(), sorted.end(), are_same), sorted.end());
}

// Of what a quick look would not have looked at either.
bool is_about_values(const NotChecked& left) {
  return left.what != kOwners && left.what != kRankFiles;
}

// What is said of the whole is the first process's.
void drop_what_the_first_says(VerifyReport& report) {
  report.findings.findings.clear();
  report.not_checked.clear();
  report.not_proven.clear();
  report.group_count = 0;
}

// Of a checkpoint that cannot be opened.
VerifyReport report_alone(ckpt::Finding finding, const VerifyOptions& options) {
  VerifyReport report;
  report.iteration = options.iteration;
  if (options.share.rank != 0) return report;
  report.findings.findings.push_back(std::move(finding));
  report.not_checked.push_back({"all other files", "the checkpoint cannot be opened"});
  return report;
}

VerifyReport report_of(const ckpt::Checkpoint& checkpoint) {
  VerifyReport report;
  report.format = checkpoint.catalog().format;
  report.iteration = checkpoint.catalog().iteration;
  return report;
}

// What was found of the meaning joins what was found of the bytes.
void join_findings(VerifyReport& report, ckpt::Findings findings) {
  std::vector<ckpt::Finding>& meaning = report.findings.findings;
  findings.findings.insert(findings.findings.end(), meaning.begin(), meaning.end());
  findings.sort();
  drop_repeated(findings.findings);
  report.findings = std::move(findings);
}

VerifyReport verify_files(const ckpt::Checkpoint& checkpoint, const VerifyOptions& options) {
  VerifyReport report = report_of(checkpoint);
  check_rank_folders(checkpoint, report);
  report.not_checked.push_back({"archives, checksums and values", "only files were looked at"});
  if (options.share.rank != 0) drop_what_the_first_says(report);
  join_findings(report, ckpt::verify(checkpoint, options));
  return report;
}

}  // namespace

VerifyReport verify(const ckpt::Checkpoint& checkpoint, const VerifyOptions& options) {
  if (options.quick && options.files_only) return verify_files(checkpoint, options);
  VerifyReport report = report_of(checkpoint);
  StateCheck states(checkpoint, report);
  if (options.quick) {
    std::erase_if(report.not_checked, is_about_values);
    report.not_checked.push_back({"checksums and values", "a quick look reads no payload"});
  } else {  // a quick look asks whether a checkpoint is complete, which it may be all the same
    for (ckpt::Finding& finding : find_other_iterations(checkpoint)) {
      report.findings.findings.push_back(std::move(finding));
    }
  }
  check_groups(checkpoint, report);
  if (options.share.rank != 0) drop_what_the_first_says(report);
  ckpt::VerifyOptions with_watch = options;
  with_watch.on_storage = [&states](const ckpt::StoragePiece& piece) { states.see(piece); };
  ckpt::Findings findings = ckpt::verify(checkpoint, with_watch);
  if (!options.quick) states.finish(findings.files);
  join_findings(report, std::move(findings));
  return report;
}

VerifyReport verify(const fs::path& path, const VerifyOptions& options) {
  std::optional<ckpt::Checkpoint> checkpoint;
  try {
    checkpoint = open(path, options);
  } catch (const ckpt::Error& error) {
    auto overwritten = find_overwritten(path, error, options.limits);
    if (!overwritten) throw;
    return report_alone(std::move(*overwritten), options);
  }
  return verify(*checkpoint, options);
}

}  // namespace optim
