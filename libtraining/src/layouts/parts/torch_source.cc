// Which rank files there are, and which there have to be.
#include "layouts/parts/torch_source.h"

#include <set>

#include "state/words.h"

namespace optim {

static Error missing(const std::string& file) {
  return Error(ErrorCode::Corrupt, {.file = file, .key = {}},
               "this file of the checkpoint is missing")
      .mark_incomplete();
}

const Document& TorchSource::document(const std::string& file) const {
  if (const Document* found = checkpoint.document(file)) return *found;
  throw missing(file);
}

const TensorEntry& TorchSource::tensor_at(const Place& place) const {
  const TensorEntry* tensor = checkpoint.catalog().find_tensor(place.pointer, place.file);
  if (tensor == nullptr) place.corrupt("is not a tensor");
  return *tensor;
}

std::string first_model_file(const OpenedTraining& checkpoint) {
  std::string first;
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    if (!file.path.starts_with("mp_rank_") || !file.path.ends_with(kModelFileName)) continue;
    if (first.empty() || file.path < first) first = file.path;
  }
  if (!first.empty()) return first;
  throw missing("mp_rank_00/model_optim_rng.pt");
}

void refuse_left_over_files(const TorchSource& source, bool is_layer_wise) {
  std::set<std::string> known;
  for (const WorldRank& rank : source.ranks) {
    known.insert(rank.model_file());
    if (is_layer_wise) known.insert(rank.optimizer_file());
  }
  for (const ckpt::FileEntry& file : source.checkpoint.catalog().files) {
    const std::string_view path = file.path;
    const bool is_rank_file =
        path.starts_with("mp_rank_") &&
        (path.ends_with(kModelFileName) || path.find("/layer_wise_optimizer_") != path.npos);
    if (!is_rank_file || known.contains(file.path)) continue;
    throw Error(ErrorCode::Corrupt, {.file = file.path, .key = {}},
                "unexpected rank file: args describe a run of " +
                    std::to_string(source.ranks.size()) +
                    (source.ranks.size() == 1 ? " rank" : " ranks") + ", which writes no such file",
                "it may be left over from a run with more ranks");
  }
}

}  // namespace optim
