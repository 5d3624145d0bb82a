#pragma once

#include <vector>

#include <ckpt/checkpoint.h>

#include "verify/verify_account.h"
#include "verify/verify_payload.h"

namespace ckpt {

// One part of a file: a torch.save archive, or bytes without structure.
struct VerifiedItem {
  size_t file = 0;  // into VerifyAccount::files()
  ByteRange bytes = {};
  Wrapping wrapping = Wrapping::TorchSave;  // None: bytes without structure
  bool is_entry = false;                    // of a .distcp file
  const TensorEntry* tensor = nullptr;  // what .metadata says that the entry holds: a chunk of it,
  const Chunk* chunk = nullptr;
  const ObjectEntry* object = nullptr;  // or an object
};

// The parts of the share's files, in their order; bytes that belong to none are labelled and found.
std::vector<VerifiedItem> list_items(const Checkpoint& checkpoint, VerifyAccount& account);

// Checks archives, inflated where they are compressed: headers against directory, entry against
// .metadata, small members' checksums. Large members are left to `payloads`. Small archives that
// lie together are read together.
void check_items(const Checkpoint& checkpoint, std::span<const VerifiedItem> items,
                 VerifyAccount& account, PayloadVerifier& payloads);

}  // namespace ckpt
