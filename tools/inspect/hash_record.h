#pragma once

#include <map>
#include <string>

#include <ckpt/hash.h>
#include <common/console.h>

namespace tools::inspect {

// What an output of `ckpt-inspect hash` says: SHA-256 by name of tensor or object, as the text
// output shows names. After --quiet it is the digest alone.
struct HashRecord {
  std::multimap<std::string, std::string> hashes;
  std::string digest;
};

HashRecord record_of(const ckpt::Hashes& hashes);

// Reads outputs with and without --json. Throws NotFound, IoFailure; Corrupt where the file is
// neither.
HashRecord read_record(const std::string& path);

// Prints what differs. Exit code 0 where nothing does, else 1.
int print_comparison(Console& console, const HashRecord& found, const HashRecord& recorded);

}  // namespace tools::inspect
