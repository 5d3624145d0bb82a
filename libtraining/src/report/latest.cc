#include <training/latest.h>

#include <algorithm>
#include <functional>
#include <ranges>
#include <utility>

#include <ckpt/error.h>
#include <training/megatron_folders.h>
#include <training/verify.h>

#include "args/iteration_names.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

// Written after all else in a torch_dist folder of Megatron's.
constexpr std::string_view kLastFile = kMegatronFolders.backend_file;

std::string place_of(const ckpt::Where& where) {
  return where.file.empty() ? "" : ckpt::escaped(where.file) + ": ";
}

// Why an iteration is not complete; nullopt where it is.
std::optional<SkippedIteration> fault_of(const NamedIteration& named, const ckpt::Limits& limits) {
  SkippedIteration fault{named.folder, {}};
  const fs::path path = path_of(named);
  try {
    VerifyOptions options;
    options.quick = true;
    options.limits = limits;
    const VerifyReport report = verify(path, options);
    // Checked first: whatever else an unfinished save lacks is not damage.
    if (is_of_megatron(named) && report.format == ckpt::Format::TorchDist &&
        ckpt::kind_at(path / kLastFile) == ckpt::EntryKind::Absent) {
      fault.reason = std::string(kLastFile) + ", which is written last, is missing";
      return fault;
    }
    for (const ckpt::Finding& finding : report.findings.findings) {
      if (finding.severity != ckpt::Severity::Damage) continue;
      fault.reason = place_of(finding.where) + finding.problem;
      fault.is_found_by_verify = true;
      return fault;
    }
    return std::nullopt;
  } catch (const ckpt::Error& error) {
    fault.reason = error.what();
    fault.is_unsupported = error.code() == ckpt::ErrorCode::Unsupported;
    return fault;
  }
}

// Megatron's where there are any. Numbers of two programs, epochs and steps, are not in one order.
NamedIterations iterations_of_one_naming(const fs::path& root, const ckpt::Limits& limits) {
  NamedIterations found = find_iterations(root, limits);
  std::vector<NamedIteration>& folders = found.folders;
  if (std::ranges::any_of(folders, is_of_megatron))
    std::erase_if(folders, std::not_fn(is_of_megatron));
  for (const NamedIteration& named : folders) {
    if (named.writer == folders.front().writer) continue;
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = root.string(), .key = {}},
                      "has folders of two namings, " +
                          ckpt::escaped(folders.front().folder.path.filename().string()) + " and " +
                          ckpt::escaped(named.folder.path.filename().string()) +
                          ": which is the newest is not known",
                      "ckpt-inspect lineage lists them all");
  }
  return found;
}

}  // namespace

LatestReport find_latest(const fs::path& root, const ckpt::Limits& limits) {
  LatestReport report;
  NamedIterations found = iterations_of_one_naming(root, limits);
  report.elsewhere = std::move(found.elsewhere);
  for (const NamedIteration& named : found.folders | std::views::reverse) {
    auto fault = fault_of(named, limits);
    if (!fault) {
      report.latest = {named.folder.iteration, path_of(named)};
      break;
    }
    report.skipped.push_back(std::move(*fault));
  }
  return report;
}

FinishedIterations find_finished(const fs::path& root, const ckpt::Limits& limits,
                                 const std::function<bool(const ckpt::IterationFolder&)>& wanted) {
  const NamedIterations found = iterations_of_one_naming(root, limits);
  const auto tracked = ckpt::latest_iteration(root, kMegatronFolders);
  FinishedIterations iterations;
  for (const NamedIteration& named : found.folders) {
    const bool is_late = is_of_megatron(named) && tracked && named.folder.iteration > *tracked;
    if (is_late || !wanted(named.folder)) continue;
    if (auto fault = fault_of(named, limits)) {
      iterations.skipped.push_back(std::move(*fault));
    } else {
      iterations.finished.push_back({named.folder.iteration, path_of(named)});
    }
  }
  return iterations;
}

std::vector<ckpt::IterationFolder> find_complete(const fs::path& root, size_t count_max,
                                                 const ckpt::Limits& limits) {
  const NamedIterations found = iterations_of_one_naming(root, limits);
  std::vector<ckpt::IterationFolder> complete;
  for (const NamedIteration& named : found.folders | std::views::reverse) {
    if (complete.size() == count_max) break;
    if (!fault_of(named, limits)) complete.push_back({named.folder.iteration, path_of(named)});
  }
  return complete;
}

}  // namespace optim
