// Source: get_vocab_size of nemo/lightning/base.py of NeMo 2.4;
// megatron/core/dist_checkpointing/strategies/resharding.py of core 0.13.
#include "convert/nemo_folder.h"

#include <string>
#include <utility>

#include <ckpt/files_beside.h>
#include <training/megatron_folders.h>

#include "args/bridge_args.h"
#include "args/common_state.h"
#include "args/nemo_args.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr std::string_view kAdapters = "adapter_metadata.json";
const std::string kWeights = std::string(kMegatronFolders.state_folder) + "/";

// NeMo pads the vocabulary for its tensor-parallel size, and takes optimizer state of another
// number of rows for that of other ranks, without an error.
void require_rows_of_nemo(const TargetJob& job) {
  const uint32_t before = job.original.grid.sizes.tensor_parallel,
                 after = job.grid.sizes.tensor_parallel;
  const ModelFacts& facts = job.source.facts;
  const uint64_t rows = job.vocabulary_rows;
  if (rows == 0) return;
  if (facts.vocabulary && rows != *facts.vocabulary) {
    throw Error(ErrorCode::Unsupported, {.file = kNemoConfig, .key = "config.vocab_size"},
                "is " + std::to_string(*facts.vocabulary) + ", and NeMo pads it by no row: " +
                    std::to_string(rows) + " would not be loaded",
                "--tp that divides it");
  }
  const bool is_as_padded = after > before && rows % (facts.vocabulary_divisor * after) == 0;
  if (facts.vocabulary || job.spec.sizes.vocabulary || after == before || is_as_padded) return;
  throw Error(ErrorCode::Unsupported, {.file = kNemoConfig, .key = "config.vocab_size"},
              "is not stated, so that it is not known to how many rows NeMo pads the vocabulary "
              "at --tp " +
                  std::to_string(after),
              "--vocab-size gives the number of the tokenizer's tokens");
}

std::string config_of(const TargetJob& job, const OpenedTraining& source) {
  ckpt::ArchiveBuilder archive;
  const Value common = job.source.common.tree.root();
  const NodeId args = carry_args(job, *common.find("args"), archive);
  return nemo_config_with_args(nemo_config(source), *archive.tree().value(args).state());
}

// But for the model.yaml, which is made. Adapters are loaded where their metadata is in weights/.
void carry_context(const OpenedTraining& source, ckpt::Target& target) {
  constexpr std::string_view kContext[] = {kMegatronFolders.beside_state_folder, kAdapters};
  constexpr uint64_t kBytesMax = 256 << 20;
  bool is_carried = false;
  for (ckpt::TargetFile& file : ckpt::copies_of_beside(source, kContext, kBytesMax)) {
    const bool is_context = file.path.starts_with("../");
    if (!is_context && file.path != kAdapters) continue;  // of the same name in weights/
    is_carried |= is_context;
    file.path = is_context ? file.path.substr(3) : kWeights + file.path;
    if (file.path != kNemoConfig) target.files.insert(target.files.begin(), std::move(file));
  }
  if (is_carried) return;
  throw Error(ErrorCode::Unsupported, {.file = std::string(kContext[0]), .key = {}},
              "has more than 256 MiB, which are not copied",
              "--optimizer-sharding fully_reshardable writes a folder of Megatron-LM without it");
}

}  // namespace

bool stays_nemo(const FiledState& state, const Job& job, const ConvertOptions& options) {
  const bool is_nemo = &keys_of(job.source) != &job.source.catalog();
  const FilingChange& form = options.form;
  const bool is_other =
      options.base.format.value_or(ckpt::Format::TorchDist) != ckpt::Format::TorchDist ||
      form.filing != nullptr || form.release != nullptr || !form.buckets.empty() || options.into ||
      job.link;
  // Of an optimizer that --model-only leaves out, there is a schedule.
  const bool is_model =
      state.chain.empty() && !state.common.tree.root().find(kSchedulerOfNemo).has_value();
  return is_nemo && !is_other && (is_model || state.filed.only() == &kRanges);
}

void make_nemo_folder(const TargetJob& job, const OpenedTraining& source, ckpt::Target& target) {
  require_rows_of_nemo(job);
  for (ckpt::TargetFile& file : target.files) file.path = kWeights + file.path;
  std::string config = config_of(job, source);
  if (config != nemo_config(source)) {
    target.warnings.push_back(
        "context/io.json keeps the sizes of the source, which load_context() gives; a trainer "
        "of NeMo sets its own");
  }
  target.files.insert(target.files.begin(), {kNemoConfig, {}, std::move(config)});
  carry_context(source, target);
  std::erase_if(target.not_carried,
                [](const ckpt::NotCarried& lost) { return lost.what == kSchedulerOfNemo; });
}

}  // namespace optim
