#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ckpt/hash.h>
#include <ckpt/value_tree.h>

#include "codec/hash_functions.h"

namespace ckpt {

// Writes values as docs/formats/canonical_encoding.md says: equal values give equal bytes, whatever
// order their dictionaries and sets are stored in. A container is represented by the SHA-256 of its
// content, so that shared values cost nothing and subtrees are compared by 33 bytes. No recursion.
class CanonicalEncoder {
 public:
  // SHA-256 of the payload of a node that is a tensor or a storage.
  using PayloadDigest = std::function<Sha256(NodeId)>;
  CanonicalEncoder(const ValueTree& tree, PayloadDigest payload_digest);

  // SHA-256 of the encoding of a value. Encodes everything below it; throws what as_tensor()
  // throws.
  Sha256 digest(NodeId root);
  // The encoding of a value below the last digest()'s root.
  std::string encoding(NodeId id) const;

 private:
  struct OpenNode {
    NodeId id;
    std::vector<NodeId> children;
    size_t next = 0;
  };
  void enter(NodeId id);
  void finish(NodeId id);
  void forget_cycles();

  const ValueTree& tree_;
  PayloadDigest payload_digest_;
  std::vector<OpenNode> open_;
  std::vector<uint32_t> mark_;    // of a node: 0, kOpenMark | depth, or 1 + index into digests_
  std::vector<NodeId> finished_;  // by index into digests_
  std::vector<Sha256> digests_;
  bool has_cycle_ = false;
  Sha256Stream stream_;
};

// Finds what the encoder asks digests for: tensors, and storages that are no tensor's.
class PayloadSearch {
 public:
  explicit PayloadSearch(const ValueTree& tree);
  // Those below `root` that no earlier call has given.
  std::vector<NodeId> unseen_below(NodeId root);

 private:
  const ValueTree& tree_;
  std::vector<bool> seen_;
};

}  // namespace ckpt
