#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include <ckpt/catalog.h>
#include <training/opened_training.h>

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

}  // namespace optim
