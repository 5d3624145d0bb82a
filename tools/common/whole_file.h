#pragma once

#include <string>
#include <string_view>

namespace tools {

// Throws Error(AlreadyExists) where something is at `path` already, which --force replaces.
void refuse_existing(const std::string& path);

// Throws Error(NotFound) where the folder of `path` is not there; InvalidArgument where a file may
// not be replaced even on request: what is no file (a folder, a device, a pipe), or belongs to the
// checkpoint at `source`.
void refuse_output(const std::string& path, const std::string& source);

// Throws Error(InvalidArgument) where the file exists and is neither empty nor an HTML page.
void refuse_other_than_page(const std::string& path);

// A file that appears whole or not at all: written beside `path` under another name, then renamed.
// Without `replaces` as refuse_existing(). Throws Error(IoFailure).
void write_whole_file(const std::string& path, std::string_view text, bool replaces);

}  // namespace tools
