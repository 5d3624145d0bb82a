#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/hash.h>

namespace optim {

struct RawName {
  std::string file, key;
  auto operator<=>(const RawName&) const = default;
};

enum class RowKind : uint8_t { Tensor, Object, TensorInObject };

// A row of a recorded output, as it stands there.
struct HashRow {
  std::string place;            // "line 3", "/tensors/2"
  std::string name;             // HashLine::name
  std::optional<RowKind> kind;  // none: of text, where tensors in objects look as those outside do
  std::string hash, dtype, shape;
  std::optional<RawName> raw = std::nullopt;  // where the output leaves no doubt
};

struct HashRows {
  std::vector<HashRow> rows;
  std::string selection, digest;
  std::string digest_place, second_digest_place;  // empty: there is none
};
// Of what is no output nothing.
HashRows parse_hash_rows(std::string_view text);

ckpt::Sha256 sha256_of(std::string_view hex);  // zero where the text is none

}  // namespace optim
