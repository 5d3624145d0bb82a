
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ckpt/files_beside.h>
#include <ckpt/plain_target.h>
#include <ckpt/rank_files_target.h>
#include <training/opened_training.h>

#include "args/common_state.h"
#include "convert/checks.h"
#include "convert/files_beside.h"
#include "convert/plain_model.h"
#include "convert/write_named.h"
#include "huggingface/model_files.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr std::string_view kFilesOfVerl[] = {kFolderOfVerl};
constexpr uint64_t kFilesOfVerlBytesMax = 64 << 20;  // they are held in memory
constexpr const char* kFsdpConfig = "fsdp_config.json";

// --world-size, and of the ranks that it counts --shards and --tp.
ckpt::MeshSizes set_ranks(const ConvertOptions& options, ckpt::TargetSpec& spec) {
  SizeChange sizes = options.sizes;
  spec.ranks = std::exchange(sizes.world_size, std::nullopt).value_or(0);
  const uint64_t tensor = std::exchange(sizes.tensor_parallel, std::nullopt).value_or(0);
  if (spec.ranks != 0 && sizes.empty()) return {options.shards.value_or(0), tensor};
  throw Error(ErrorCode::InvalidArgument, {},
              "files of FSDP's ranks are written for --world-size N, and no other sizes but "
              "--shards and --tp, which are otherwise the source's");
}

// What verl writes beside them: the number of ranks, and what is the same for any.
void add_files_of_ranks(const OpenedTraining& source, uint64_t ranks, ckpt::Target& target) {
  add_files(ckpt::copies_of_beside(source, kFilesOfVerl, kFilesOfVerlBytesMax), "", target);
  constexpr std::string_view kDigits = "0123456789", kName = "\"world_size\"";
  std::string text = ckpt::text_beside(source, kFsdpConfig);
  const size_t name = text.find(kName);
  const size_t begin = name == text.npos ? name : text.find_first_of(kDigits, name);
  if (begin == text.npos) return;
  const size_t end = text.find_first_not_of(kDigits, begin);
  text.replace(begin, std::min(end, text.size()) - begin, std::to_string(ranks));
  target.files.push_back({kFsdpConfig, {}, text});
}

}  // namespace

ConvertReport convert_plain(Job job, const ConvertOptions& options) {
  const OpenedTraining& source = job.source;
  if (!options.repair.kinds.empty()) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "is a plain state dict; expected a checkpoint of Megatron for --repair");
  }
  if ((!options.sizes.empty() || options.shards) && !options.rank_files) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "is a plain state dict; expected a checkpoint of Megatron for a parallel size",
                "leave out --dp and other sizes");
  }
  require_form_of_optimizer(options, "a plain state dict");
  if (options.hugging_face) return export_plain(std::move(job), options);
  const ckpt::Format format = options.base.format.value_or(source.catalog().format);
  const bool as_folder = ckpt::is_safetensors_folder(job.destination);
  ckpt::TargetSpec spec{format, as_folder, options.base.keys, options.base.types};
  ckpt::MeshSizes sizes;
  if (options.rank_files) sizes = set_ranks(options, spec);
  spec.mesh_device = options.mesh_device;
  std::optional<PlainModel> model;
  if (options.model_only) {
    model = find_plain_model(source);
    spec.keys = rules_of_model(*model, options.base.keys, options.rank_files ? "model" : "");
  }
  ckpt::Target target = options.rank_files ? ckpt::make_rank_files(source, spec, sizes)
                                           : ckpt::make_target(source, spec);
  if (model) target.warnings.push_back(text_of(*model));
  if (options.rank_files) add_files_of_ranks(source, spec.ranks, target);
  list_files_beside(source, target);
  job.check_result = plain_check(source, spec, target.not_carried, options.base);
  ConvertReport report = write(job, std::move(target), options);
  report.rank_files = options.rank_files;
  return report;
}

ConvertReport reshard_plain(const Job& job, const ConvertOptions& options) {
  if (!ckpt::holds_rank_files(job.source)) {
    refuse_kind(job.source, "a training checkpoint of Megatron, to reshard it");
  }
  ConvertOptions of_ranks = options;
  of_ranks.rank_files = true;
  return convert_plain(job, of_ranks);
}

}  // namespace optim
