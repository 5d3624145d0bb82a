#include <ckpt/convert.h>

#include <ckpt/error.h>

namespace ckpt {
namespace {

void refuse_losses(const std::vector<NotCarried>& losses) {
  if (losses.empty()) return;
  throw Error(
      ErrorCode::Unsupported, {.file = {}, .key = losses[0].what},
      "cannot be carried: " + losses[0].reason,
      losses.size() == 1 ? "" : std::to_string(losses.size()) + " things cannot be carried");
}

}  // namespace

ConvertReport write_target(Target target, const PayloadSource& source,
                           const std::filesystem::path& source_path,
                           const std::filesystem::path& destination,
                           const ConvertOptions& options) {
  if (options.strict) refuse_losses(target.not_carried);
  ConvertReport report;
  report.target_format = target.format;
  report.plan = make_plan(target);
  if (!options.dry_run) {
    const bool single_file = target.files.size() == 1 && target.files[0].path.empty();
    Staging staging =
        Staging::create(destination, {options.force, single_file, source_path.string()});
    report.stats = execute(target, report.plan, source, staging, options.execute);
    staging.commit();
  }
  report.not_carried = std::move(target.not_carried);
  report.warnings = std::move(target.warnings);
  return report;
}

ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ConvertOptions& options) {
  const Checkpoint opened = Checkpoint::open(source, {options.iteration, {}});
  const Format format = options.format.value_or(opened.catalog().format);
  ConvertReport report =
      write_target(make_target(opened, {format}), opened, source, destination, options);
  report.source_format = opened.catalog().format;
  return report;
}

}  // namespace ckpt
