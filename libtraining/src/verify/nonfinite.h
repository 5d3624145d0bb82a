#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/catalog.h>
#include <training/opened_training.h>
#include <training/verify.h>

#include "state/value_scan.h"

namespace optim {

// Which tensors of a checkpoint are a model's or an optimizer's (docs/verify.md, "NaN and
// infinity"): all but those that lie beside the model in a training loop's file, as far as their
// place says that they are something else.
class TrainedTensors {
 public:
  // `more`: tensors that are in no catalog.
  TrainedTensors(const ckpt::Catalog& catalog, const std::deque<ckpt::TensorEntry>& more);
  bool contains(const ckpt::TensorEntry& tensor) const;

 private:
  void see(const ckpt::TensorEntry& tensor);

  bool has_loop_ = false;       // some mapping of the file is named as a model or an optimizer is
  bool has_optimizer_ = false;  // the same of an optimizer
};

struct ObjectTensors {
  std::deque<ckpt::TensorEntry> tensors;
  // Of compressed objects: where they are stored, by the number that their chunks have for a file.
  std::map<uint32_t, ckpt::StorageRegion> compressed;
};

// Tensors of floating point in objects of a DCP folder, which torch.save files have in their
// catalogs. None of Megatron's, whose objects hold random states and bytes.
ObjectTensors tensors_in_objects(const OpenedTraining& checkpoint);

// Says what NaN and infinities in a tensor are: damage in a model's or an optimizer's, unless they
// are allowed or a mask; a note elsewhere.
class NonfiniteValues {
 public:
  // `allowed`: globs over keys, as --include takes them; `more`: tensors that are in no catalog.
  NonfiniteValues(const OpenedTraining& checkpoint, const std::vector<std::string>& allowed,
                  const std::deque<ckpt::TensorEntry>& more, VerifyReport& report);

  // Of values of a tensor, which are at `place`. False where that is damage.
  bool tell(const ckpt::TensorEntry& tensor, const ckpt::Where& place, const ValueScan& values);

 private:
  bool is_mask(const ckpt::TensorEntry& tensor) const;

  const OpenedTraining& checkpoint_;
  VerifyReport& report_;
  TrainedTensors trained_;
  bool may_allow_;
  ckpt::KeySelection allowed_;
  std::set<std::pair<std::string, std::string>> allowed_tensors_;  // in which something was
};

// Where a finding about a chunk is.
ckpt::Where place_of(const OpenedTraining& checkpoint, const ckpt::TensorEntry& tensor,
                     const ckpt::Chunk& chunk);
// A chunk as a tensor of its own.
ckpt::TensorEntry chunk_alone(const ckpt::TensorEntry& tensor, ckpt::Chunk chunk);
// "1 value is NaN, at index 3".
std::string text_of(const Unwanted& unwanted, std::string_view what);

}  // namespace optim
