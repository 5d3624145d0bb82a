#pragma once

#include <filesystem>
#include <string>

#include <ckpt/execute.h>
#include <ckpt/findings.h>

namespace ckpt {

struct CopySide {
  std::filesystem::path folder;
  std::string file = {};      // in it, the one that is compared; empty: all below the folder
  bool follow_links = false;  // those that lead out of the folder
};

// Every file below two folders, hidden ones included, or a file of each, whatever it is called,
// byte by byte. What they mean is not asked: see diff(). Throws InvalidArgument where both sides
// are the same folder or file, or one is a file and the other a folder; Unsupported for what is
// neither a file nor a folder, and for links to folders; Error(IoFailure, "cancelled") after a
// stop.
CopyReport compare_copies(const CopySide& copy, const CopySide& original,
                          const ExecuteOptions& options = {});

}  // namespace ckpt
