#include <training/latest.h>

#include <algorithm>

#include <ckpt/error.h>
#include <training/megatron_folders.h>
#include <training/verify.h>

namespace optim {
namespace {

namespace fs = std::filesystem;

// Written after all else in a torch_dist folder of Megatron's.
constexpr std::string_view kLastFile = kMegatronFolders.backend_file;

std::string place_of(const ckpt::Where& where) {
  return where.file.empty() ? "" : ckpt::escaped(where.file) + ": ";
}

struct Fault {
  std::string reason;
  bool is_found_by_verify = false;
};

// Why an iteration is not complete; nullopt where it is.
std::optional<Fault> fault_of(const fs::path& folder, const ckpt::Limits& limits) {
  try {
    VerifyOptions options;
    options.quick = true;
    options.limits = limits;
    const VerifyReport report = verify(folder, options);
    // Checked first: whatever else an unfinished save lacks is not damage.
    if (report.format == ckpt::Format::TorchDist && !fs::exists(folder / kLastFile)) {
      return Fault{std::string(kLastFile) + ", which is written last, is missing"};
    }
    for (const ckpt::Finding& finding : report.findings.findings) {
      if (finding.severity == ckpt::Severity::Damage) {
        return Fault{place_of(finding.where) + finding.problem, true};
      }
    }
    return std::nullopt;
  } catch (const ckpt::Error& error) {
    return Fault{error.what()};
  }
}

}  // namespace

LatestReport find_latest(const fs::path& root, const ckpt::Limits& limits) {
  LatestReport report;
  if (!limits.follow_links) report.elsewhere = ckpt::iterations_elsewhere(root, kMegatronFolders);
  for (const ckpt::IterationFolder& folder :
       ckpt::list_iterations(root, kMegatronFolders, limits)) {
    auto fault = fault_of(folder.path, limits);
    if (!fault) {
      report.latest = folder;
      break;
    }
    report.skipped.push_back({folder, std::move(fault->reason), fault->is_found_by_verify});
  }
  return report;
}

}  // namespace optim
