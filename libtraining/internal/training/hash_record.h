#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/hash.h>

// Hashes that were printed earlier, by `ckpt-inspect hash`: read, put together, compared.
namespace optim {

// A line of the text output. Points into the hashes.
struct HashLine {
  std::string dtype;  // "object" of one
  std::string shape;  // "[2, 16]"; "-" of an object
  std::string name;   // ckpt::qualified_key(); of a tensor in an object behind the object's name
  const ckpt::Sha256* sha256 = nullptr;
  bool is_own = true;
};
// In the order of the output: tensors, then each object and the tensors in it.
std::vector<HashLine> lines_of(const ckpt::Hashes& hashes);

// What outputs say, by HashLine::name: "SHA-256 DTYPE SHAPE". After --quiet it is the digest alone.
struct HashRecord {
  std::multimap<std::string, std::string> entries;
  std::string selection;  // the options by which entries were selected; empty: of everything
  std::string digest;     // empty: of a share
};

// Behind the digest of a selection in the text output.
inline constexpr std::string_view kSelectedBy = ", selected by ";

// The entries that are this process's.
HashRecord record_of(const ckpt::Hashes& hashes);
// What a share is to be compared with: what is recorded of its entries; on the first process also
// what the checkpoint has not.
HashRecord part_of(const HashRecord& recorded, const ckpt::Hashes& hashes, ckpt::Share share);

// Reads an output with or without --json, of a whole run or of a share. What is neither gives an
// empty record.
HashRecord parse_hash_record(std::string_view text);
// Throws Corrupt where a record has no digest, as that of a share, or of what is no output.
void require_whole(const HashRecord& record, const std::string& path);

// Throws Corrupt, with the line or the JSON pointer, where an output contradicts itself: a row that
// is malformed or there twice, a second digest, rows that do not give the digest. `listed`: what
// the checkpoint has. Rows of other names that may mean several things prove nothing.
void check_hash_record(std::string_view text, const ckpt::Hashes& listed, const std::string& path);

// Takes the hashes from the outputs of all shares. Throws Corrupt where they are not those of these
// entries.
void fill(ckpt::Hashes& hashes, std::vector<HashRecord> shares);

enum class RecordDifference : uint8_t { Changed, Missing, New };
std::string_view name(RecordDifference difference);  // "changed", ...

struct RecordComparison {
  std::map<std::string, RecordDifference> different;  // by name
  uint64_t compared_count = 0;                        // recorded entries
  bool is_equal = false;
};
// Equal is that of which no entry differs, and of a whole neither the digest. A record of the
// digest alone can only say whether all is equal.
RecordComparison compare_records(const HashRecord& found, const HashRecord& recorded,
                                 ckpt::Share share);

}  // namespace optim
