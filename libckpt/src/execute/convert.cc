#include <ckpt/convert.h>

namespace ckpt {

bool is_safetensors_folder(const std::filesystem::path& destination) {
  return destination.extension() != ".safetensors";
}

ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ConvertOptions& options) {
  const Checkpoint opened = Checkpoint::open(source, {options.iteration, options.limits});
  const Format format = options.format.value_or(opened.catalog().format);
  Target target = make_target(opened, {format, is_safetensors_folder(destination), options.keys});
  ConvertReport report =
      write_target(std::move(target), {opened, source, &opened}, destination, options);
  report.source_format = opened.catalog().format;
  return report;
}

}  // namespace ckpt
