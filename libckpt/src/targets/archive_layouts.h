#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include <ckpt/archive_layout.h>

namespace ckpt {

// Layouts of many archives, made once for those that are alike: 10^6 chunks have few shapes, and
// modules without a state share one tree.
class ArchiveLayouts {
 public:
  // Valid until the next call. Throws as archive_layout() does.
  const ArchiveLayout& of(const TargetArchive& archive);

 private:
  const ArchiveLayout& of_tree(const TargetArchive& archive);

  using BareKey = std::tuple<uint64_t, DType, Extents, std::string>;  // sizes differ most
  std::map<BareKey, ArchiveLayout> of_bare_tensors_;
  ArchiveLayout other_;
  const ValueTree* tree_of_other_ =
      nullptr;  // where it has no records, and so depends on nothing else
  std::string name_of_other_;
};

}  // namespace ckpt
