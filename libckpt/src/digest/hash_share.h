#pragma once

#include <vector>

#include <ckpt/inventory.h>
#include <ckpt/staging.h>

#include "digest/object_digests.h"
#include "digest/payload_hasher.h"

namespace ckpt {

// What one of several processes hashes. What has bytes in common goes to one process, so that no
// payload is read twice: a tensor that is listed twice, and the objects of a document with all that
// they hold. So do equal names: their order is that of one output.
struct HashShare {
  std::vector<bool> tensors, objects;  // by index in the inventory
  std::vector<bool> payloads;          // by the hasher's number
};

// What is known of an inventory before anything is read.
struct HashPlan {
  const Inventory& inventory;
  const std::vector<size_t>& numbers;  // the hasher's, of the inventory's tensors
  const ObjectDigests& digests;
  const PayloadHasher& hasher;
};

// Pure: every process finds the same shares.
HashShare make_hash_share(const HashPlan& plan, Share share);

}  // namespace ckpt
