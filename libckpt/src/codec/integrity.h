#pragma once

#include <map>
#include <string>

#include <ckpt/folder.h>
#include <ckpt/hash.h>
#include <ckpt/limits.h>

namespace ckpt {

// A manifest of a folder's files, as Megatron-Core writes it (--verify-integrity, since 0.20):
//   integrity.json   {"algorithm": "sha256", "files": {"NAME": "64 hex digits", ...}}
inline constexpr const char* kIntegrityName = "integrity.json";
inline constexpr const char* kAlgorithmKey = "algorithm";  // in errors about another one

using FileHashes = std::map<std::string, Sha256>;  // by path relative to the folder

// Throws Corrupt for anything else than that, Unsupported for another algorithm.
FileHashes read_integrity(const RandomAccess& file, const Limits& limits);

std::string integrity_text(const FileHashes& hashes);

}  // namespace ckpt
