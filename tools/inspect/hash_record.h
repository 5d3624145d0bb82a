#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/hash.h>
#include <common/console.h>

namespace tools::inspect {

// What outputs of `ckpt-inspect hash` say, by name of tensor or object as the text output shows
// names: "SHA-256 DTYPE SHAPE". After --quiet it is the digest alone.
struct HashRecord {
  std::multimap<std::string, std::string> entries;
  std::string selection;  // KeyFilter::text() of --include and --exclude; empty: of everything
  std::string digest;  // empty: of a share
};

// Behind the digest of a selection in the text output.
inline constexpr std::string_view kSelectedBy = ", selected by ";

// The entries that are this process's.
HashRecord record_of(const ckpt::Hashes& hashes);
// What a share is to be compared with: what is recorded of its entries; on the first process also
// what the checkpoint has not.
HashRecord part_of(const HashRecord& recorded, const ckpt::Hashes& hashes, ckpt::Share share);

// Reads an output with or without --json, of a whole run. Throws NotFound, IoFailure; Corrupt where
// the file is neither.
HashRecord read_record(const std::string& path);
// Takes the hashes from the outputs of all shares. Throws Corrupt where they are not those of these
// entries.
void fill(ckpt::Hashes& hashes, const std::vector<std::string>& paths);

// Prints what differs. Exit code 0 where nothing does, else 1.
int print_comparison(Console& console, const HashRecord& found, const HashRecord& recorded,
                     ckpt::Share share);

}  // namespace tools::inspect
