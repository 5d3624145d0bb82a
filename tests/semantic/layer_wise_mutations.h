#pragma once

#include <string>
#include <vector>

#include <ckpt/archive_builder.h>

#include "support/random_tensors.h"

namespace semantic {

// A file of a LayerWise checkpoint, about to be written: its tree may be changed.
struct ChangingFile {
  std::string path;
  ckpt::ArchiveBuilder archive;
  ckpt::NodeId root = 0;
  ckpt::Value value() { return archive.tree().value(root); }
};

// Files: the rank files in their order, then the model file. Changes one or two things that have a
// meaning, and says which.
std::string mutate(test::Random& random, std::vector<ChangingFile>& files);

}  // namespace semantic
