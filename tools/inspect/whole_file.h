#pragma once

#include <string>
#include <string_view>

namespace tools::inspect {

// Throws Error(AlreadyExists) where something is at `path` already, which --force replaces;
// NotFound where the folder that it is to be in is not there.
void refuse_existing(const std::string& path);

// A file that appears whole or not at all: written beside `path` under another name, then renamed.
// Without `replaces` as refuse_existing(). Throws Error(IoFailure).
void write_whole_file(const std::string& path, std::string_view text, bool replaces);

}  // namespace tools::inspect
