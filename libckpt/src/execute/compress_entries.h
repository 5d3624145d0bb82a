#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <stop_token>
#include <string>

namespace ckpt {

struct CompressOptions {
  int level = 3;         // ZstdCompressor::kLevelMin to kLevelMax
  unsigned threads = 0;  // 0: one per core
  std::stop_token stop;  // a requested stop ends in Error(IoFailure, "cancelled")
};

// Compresses each entry of the .distcp files of a DCP folder that execute() has just written, as
// PyTorch's ZStandard extension does, and writes its .metadata anew. How long a compressed entry is
// shows only when it is made, so offsets are given in the order of the entries, one file at a time.
// Needs room for one file more. Returns the new sizes by path in the folder.
std::map<std::string, uint64_t> compress_entries(const std::filesystem::path& folder,
                                                 const CompressOptions& options);

}  // namespace ckpt
