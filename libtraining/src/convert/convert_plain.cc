#include "convert/convert_plain.h"

#include <optional>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/plain_target.h>

#include "convert/check_result.h"
#include "convert/checks.h"
#include "convert/files_beside.h"
#include "convert/plain_model.h"
#include "convert/write_named.h"

namespace optim {

ConvertReport convert_plain(Job job, const ConvertOptions& options) {
  const OpenedTraining& source = job.source;
  if (options.hugging_face) {
    throw ckpt::Error(
        ckpt::ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
        "is a plain state dict; expected a checkpoint of Megatron, whose args say what the "
        "model is, for --to huggingface",
        "--to safetensors and --rename change the names of single keys");
  }
  if (!options.repair.kinds.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                      "is a plain state dict; expected a checkpoint of Megatron for --repair");
  }
  if (!options.sizes.empty()) {
    throw ckpt::Error(
        ckpt::ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
        "is a plain state dict; expected a checkpoint of Megatron for a parallel size",
        "leave out --dp and other sizes");
  }
  require_form_of_optimizer(options, "a plain state dict");
  const ckpt::Format format = options.base.format.value_or(source.catalog().format);
  const bool as_folder = ckpt::is_safetensors_folder(job.destination);
  ckpt::TargetSpec spec{format, as_folder, options.base.keys, options.base.types};
  std::optional<PlainModel> model;
  if (options.model_only) {
    model = find_plain_model(source);
    spec.keys = rules_of_model(*model, options.base.keys);
  }
  ckpt::Target target = ckpt::make_target(source, spec);
  if (model) target.warnings.push_back(text_of(*model));
  list_files_beside(source, target);
  job.check_result = plain_check(source, spec, target.not_carried, options.base);
  return write(job, std::move(target), options);
}

}  // namespace optim
