// DeepSpeed's ZeRO-1 and ZeRO-2 keep all weights in one file, beside the ranks' parts of their fp32
// masters, of which the checkpoint's parameters are made.
#include <algorithm>

#include "state/not_checked.h"
#include "state/words.h"
#include "verify/checks.h"
#include "verify/state_check.h"

namespace optim {
namespace {

constexpr const char* kModelFile = "mp_rank_00_model_states.pt";
constexpr std::string_view kModule = "/module";

bool is_of_16_bits(const TensorEntry& tensor) {
  return tensor.dtype == DType::BFloat16 || tensor.dtype == DType::Float16;
}

// The master of a weight; nullptr for buffers and frozen parameters, which are in the model alone.
const TensorEntry* master_of(const TensorEntry& weight, const OpenedTraining& checkpoint) {
  const bool is_weight = weight.key.starts_with(kModule) && is_of_16_bits(weight);
  const TensorEntry* const master =
      is_weight ? checkpoint.catalog().find_tensor(weight.key.substr(kModule.size()), "") : nullptr;
  const bool is_master = master != nullptr && master->dtype == DType::Float32 &&
                         master->shape == weight.shape && !master->chunks.empty() &&
                         checkpoint.file_name(master->chunks[0].region.file) != kModelFile;
  return is_master ? master : nullptr;
}

}  // namespace

void check_deepspeed_masters(const OpenedTraining& checkpoint, VerifyReport& report) {
  const bool is_zero = checkpoint.joined_words().starts_with("DeepSpeed ZeRO-");
  if (!is_zero || !checkpoint.source().has(checkpoint.folder() / kModelFile)) return;
  const auto model = open_beside(checkpoint, kModelFile);
  for (const TensorEntry& weight : model->catalog().tensors) {
    const TensorEntry* const master = master_of(weight, checkpoint);
    if (master == nullptr) continue;
    unless_damaged([&] {
      const Unwanted mismatch = count_mismatches(*master, checkpoint, weight, *model);
      if (mismatch.count != 0) {  // what checksums find is told as such
        model->check_crc(weight);
        checkpoint.check_crc(*master);
        report.find({.file = checkpoint.shown_name(kModelFile), .key = weight.key},
                    text_of_mismatch(mismatch, ckpt::element_count(weight.shape)),
                    "the model's file and the optimizer's may be of two saves");
      }
      ++report.master_count;
      report.matching_master_count += mismatch.count == 0 ? 1 : 0;
    });
  }
}

}  // namespace optim
