// What of a checkpoint is compared and hashed by logical names, whatever its kind.
#include <ckpt/error.h>
#include <ckpt/inventory.h>
#include <training/layer_wise_checkpoint.h>
#include <training/logical_inventory.h>
#include <training/megatron_folders.h>

#include "args/checkpoint_kind.h"

namespace optim {

ckpt::Inventory logical_inventory(const OpenedTraining& checkpoint) {
  if (has_training_state(checkpoint)) return logical_inventory(read_training_state(checkpoint));
  try {
    ckpt::Inventory inventory = ckpt::plain_inventory(checkpoint);
    join_places(inventory);
    return inventory;
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported || !is_megatron(checkpoint)) throw;
    throw ckpt::Error(ckpt::ErrorCode::Unsupported,
                      {.file = checkpoint.folder().string(), .key = {}},
                      "is " + kind_of_checkpoint(checkpoint) +
                          ", whose names are not known; expected a LayerWise checkpoint or a plain "
                          "state dict",
                      "ckpt-inspect hash without --logical, and diff of two in the same format, "
                      "compare it under stored names");
  }
}

}  // namespace optim
