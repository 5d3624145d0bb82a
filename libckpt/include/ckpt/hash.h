#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/inventory.h>

namespace ckpt {

struct Sha256 {
  std::array<uint8_t, 32> bytes = {};
  auto operator<=>(const Sha256&) const = default;
};
CKPT_EXPORT std::string hex(const Sha256& digest);  // 64 lower-case digits

struct TensorHash {
  std::string file;
  std::string key;
  DType dtype = DType::Float32;
  Extents shape;
  Sha256 sha256;       // of the row-major little-endian bytes
  bool is_own = true;  // false: another process's, and sha256 is zero
};

struct ObjectHash {
  std::string file;
  std::string key;
  Sha256 sha256;                    // docs/formats/canonical_encoding.md
  std::vector<TensorHash> tensors;  // key: JSON pointer inside the object
  bool is_own = true;
};

// Sorted by file, then key.
struct Hashes {
  std::vector<TensorHash> tensors;
  std::vector<ObjectHash> objects;
  Sha256 digest;  // of everything above: names, types, shapes, hashes; zero where not all are own
};

// Streams every tensor once, in row-major order whatever the order of its chunks. Memory: a slab
// per thread, together at most options.memory_bytes_max, and the value trees. Throws Corrupt where
// chunks leave a hole; Error(IoFailure, "cancelled") after a stop.
// Of several processes each hashes its share, balanced by bytes: a payload, and all that holds it,
// is one process's, and so are equal names. The others' entries are listed without hashes.
CKPT_EXPORT Hashes hash(const Inventory& inventory, const PayloadSource& source,
                        const ExecuteOptions& options = {}, Share share = {});

// What hash() lists, with nothing read and nothing own.
Hashes list_hashed(const Inventory& inventory);
// The digest of the whole, once all hashes are there.
CKPT_EXPORT Sha256 digest_of(const Hashes& hashes);

// Hashes of what a tensor holds, by values whatever their type: equal numbers have equal hashes,
// others different ones but for chance, so that who relies on them compares bytes in the end.
struct VectorPrint {
  static constexpr uint64_t kNothing = 0;  // of a vector of one value alone: it says nothing
  uint64_t whole = 0;
  bool is_constant = false;              // or empty
  float first = 0;                       // value
  uint64_t plus_one = 0, minus_one = 0;  // `whole`, with it added in float32 and rounded
  // Vectors along the last dimension; of two dimensions and more along the one before, in the order
  // of the others.
  std::vector<uint64_t> rows = {}, columns = {};
};

// Of float32, bfloat16 and float16. Streams the tensor; throws as TensorStream.
VectorPrint print_of(const TensorEntry& tensor, const PayloadSource& source);

// How many of them a tensor has.
uint64_t count_vectors(const Extents& shape);

}  // namespace ckpt
