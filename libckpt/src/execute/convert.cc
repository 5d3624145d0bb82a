#include <ckpt/convert.h>

namespace ckpt {
ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ConvertOptions& options) {
  const Checkpoint opened = Checkpoint::open(source, {options.iteration, {}});
  const Format format = options.format.value_or(opened.catalog().format);
  ConvertReport report =
      write_target(make_target(opened, {format}), {opened, source, &opened}, destination, options);
  report.source_format = opened.catalog().format;
  return report;
}

}  // namespace ckpt
