#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <ckpt/convert.h>
#include <optim/layer_wise_checkpoint.h>
#include <optim/layout_export.h>
#include <optim/ownership.h>
#include <optim/prove_assignment.h>

namespace optim {

struct ConvertOptions {
  ckpt::ConvertOptions base;  // what a conversion of any checkpoint is told
  // The destination is a checkpoint root that exists: it gets an iteration, and its tracker names
  // that unless it names a later one.
  bool into = false;
  std::optional<uint32_t> data_parallel;  // default: the source's
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;
  StoreLayout layout = StoreLayout::April2026;
};

struct ReshardOptions {
  ckpt::ConvertOptions base;  // base.format, if it is set, is the source's
  ParallelSizes sizes;        // of the result; only data_parallel may differ from the source's
  bool into = false;          // as ConvertOptions'
  // The new folder of torch_dist shares the source's files, but for a new common state. Megatron
  // finds tensors by name, so that their files may stay as they are.
  bool link = false;
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;
};

struct ConvertReport : ckpt::ConvertReport {
  uint64_t linked_bytes = 0;
  bool layer_wise = false;
  uint32_t source_data_parallel = 0, target_data_parallel = 0;  // layer-wise only
  std::vector<AmbiguousParam> ambiguous;                        // layer-wise only
};

// Where ConvertOptions::into puts a source: ROOT/iter_0000003. Throws InvalidArgument for a source
// that is no iteration.
OPTIM_LAYOUT_EXPORT std::filesystem::path place_in_root(const std::filesystem::path& root,
                                                        const ckpt::Checkpoint& source);

// The one call that ckpt-convert makes: Megatron LayerWise checkpoints here, plain state dicts
// through ckpt::make_target. The destination is absent or complete, the source never touched.
// Throws what the functions above throw; Unsupported under options.base.strict where something is
// not carried or a parameter is ambiguous; AlreadyExists.
OPTIM_LAYOUT_EXPORT ConvertReport convert(const std::filesystem::path& source,
                                          const std::filesystem::path& destination,
                                          const ConvertOptions& options);

// The one call that `reshard` makes, of the same kind. Refuses what is not LayerWise, and another
// size than data_parallel that changes (Unsupported); sizes of 0 (InvalidArgument).
OPTIM_LAYOUT_EXPORT ConvertReport reshard(const std::filesystem::path& source,
                                          const std::filesystem::path& destination,
                                          const ReshardOptions& options);

}  // namespace optim
