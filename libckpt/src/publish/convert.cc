#include <ckpt/convert.h>
#include <ckpt/files_beside.h>
#include <ckpt/plain_target.h>
#include <ckpt/verify.h>
#include <ckpt/write_target.h>

namespace ckpt {

bool is_safetensors_folder(const std::filesystem::path& destination) {
  return destination.extension() != ".safetensors";
}

ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ConvertOptions& options) {
  const Checkpoint opened =
      Checkpoint::open(source, {options.iteration, options.limits, options.convention});
  const Format format = options.format.value_or(opened.catalog().format);
  const TargetSpec spec{format, is_safetensors_folder(destination), options.keys};
  Target target = make_target(opened, spec);
  for (NotCarried& file : files_not_carried(opened)) target.not_carried.push_back(std::move(file));
  ConversionSource from{opened, source, &opened};
  const std::vector<NotCarried> not_carried = target.not_carried;
  from.check_result = [&](const std::filesystem::path& written) {
    if (options.verify) {
      VerifyOptions checks;
      checks.execution = options.execute;
      refuse_damage(verify(open_result(written, {std::nullopt, opened.limits()}), checks));
    }
    return check_plain_result(opened, spec, written,
                              {not_carried, options.verify, options.execute});
  };
  ConvertReport report = write_target(std::move(target), from, destination, options);
  report.source_format = opened.catalog().format;
  return report;
}

}  // namespace ckpt
