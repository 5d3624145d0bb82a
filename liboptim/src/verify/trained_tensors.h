#pragma once

#include <ckpt/catalog.h>

namespace optim {

// Which tensors of a checkpoint are a model's or an optimizer's (docs/verify.md, "NaN and
// infinity"): all but those that lie beside the model in a training loop's file, as far as their
// place says that they are something else.
class TrainedTensors {
 public:
  explicit TrainedTensors(const ckpt::Catalog& catalog);
  bool contains(const ckpt::TensorEntry& tensor) const;

 private:
  bool has_loop_ = false;       // some mapping of the file is named as a model or an optimizer is
  bool has_optimizer_ = false;  // the same of an optimizer
};

}  // namespace optim
