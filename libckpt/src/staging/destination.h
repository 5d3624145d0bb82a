#pragma once

#include <memory>

#include <ckpt/plan.h>

#include "io/file.h"

namespace ckpt {

// Where the files of a target are made, unseen until all are there: beside their place on a disk
// (Staging), or as parts of objects (StoreStaging). Each has a commit() of its own. Safe to use
// from many threads.
class Destination {
 public:
  virtual ~Destination() = default;
  // A file of the plan in the making: asked for once in a run. Throws AlreadyExists, IoFailure.
  virtual std::shared_ptr<FileSink> create(const PlannedFile& file, OutputFile::Use use) = 0;
};

}  // namespace ckpt
