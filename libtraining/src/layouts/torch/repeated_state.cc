#include "layouts/torch/repeated_state.h"

#include "args/value_place.h"
#include "layouts/parts/tensor_parts.h"
#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::TensorEntry;

constexpr std::string_view kRepeatedKey = "optimizer";

}  // namespace

void check_repeated_state(const OpenedTraining& source, const std::string& model_file,
                          const std::string& rank_file) {
  const auto copy = source.document(model_file)->tree.root().find(kRepeatedKey);
  if (!copy) return;
  const Place copy_place = Place{model_file, ""} / kRepeatedKey;
  const std::string rank_file_name = rank_file.substr(rank_file.rfind('/') + 1);
  if (const auto where = first_difference(*copy, source.document(rank_file)->tree.root())) {
    Place{model_file, copy_place.pointer + *where}.corrupt(
        "differs from " + rank_file_name + ", which it should repeat", kMixedFilesHint);
  }
  for (const TensorEntry& tensor : source.catalog().tensors) {
    if (tensor.file != rank_file) continue;
    const Place own{model_file, copy_place.pointer + tensor.key};
    const TensorEntry* repeated = source.catalog().find_tensor(own.pointer, own.file);
    if (repeated == nullptr) own.corrupt("is not a tensor");
    if (are_equal(*repeated, tensor, source)) continue;
    own.corrupt("its values differ from " + rank_file_name + ", which it should repeat",
                kMixedFilesHint);
  }
}

}  // namespace optim
