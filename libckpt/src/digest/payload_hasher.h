#pragma once

#include <vector>

#include <ckpt/execute.h>
#include <ckpt/hash.h>

#include "base/text_map.h"

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

}  // namespace ckpt
