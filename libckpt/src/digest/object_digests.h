#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ckpt/inventory.h>

#include "digest/canonical_encoding.h"
#include "digest/payload_hasher.h"

namespace ckpt {

// The canonical encodings of an inventory's objects. Tensors inside them are hashed by a
// PayloadHasher that the caller runs between construction and the first question.
class ObjectDigests {
 public:
  ObjectDigests(const std::vector<ObjectTree>& objects, PayloadHasher& hasher);

  Sha256 digest(const ObjectTree& object);
  // Digest of a tensor's or storage's payload, by its node.
  const Sha256& payload_digest(const Document& document, NodeId node) const;
  // The payloads of all objects of a document, as the hasher numbers them.
  std::vector<size_t> payloads_of(const Document& document) const;
  // Of a document whose object was digested last.
  const CanonicalEncoder& encoder(const Document& document) const;

 private:
  struct Encoding {
    PayloadSearch search;
    CanonicalEncoder encoder;
  };
  Encoding& encoding_of(const Document& document);
  void add_payloads(const ObjectTree& object);

  PayloadHasher& hasher_;
  std::map<std::pair<const Document*, NodeId>, size_t> numbers_;
  std::map<const Document*, std::unique_ptr<Encoding>> encodings_;
};

}  // namespace ckpt
