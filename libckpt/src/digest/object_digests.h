#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/hash.h>
#include <ckpt/inventory.h>

#include "base/text.h"
#include "digest/canonical_encoding.h"

namespace ckpt {

// SHA-256 of many tensors' row-major bytes: largest first, on all threads, a slab of memory each.
// A payload that is stored once and listed twice is read once.
class PayloadHasher {
 public:
  // Gives the number under which digest() will have the answer.
  size_t add(TensorEntry tensor);
  // `wanted`: by number; empty: all.
  void run(const PayloadSource& source, const ExecuteOptions& options,
           const std::vector<bool>& wanted = {});
  size_t size() const { return tensors_.size(); }
  uint64_t payload_bytes(size_t number) const;
  const Sha256& digest(size_t number) const { return digests_[number]; }

 private:
  std::vector<TensorEntry> tensors_;
  std::vector<Sha256> digests_;
  TextMap<size_t> known_;  // by identity of the payload
};

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
