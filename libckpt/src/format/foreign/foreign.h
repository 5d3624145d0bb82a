#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <ckpt/folder.h>

namespace ckpt {

// A thing that a path may lead to and that is no checkpoint which is read.
struct Foreign {
  std::string_view name;    // "a GGUF file (llama.cpp)"
  std::string_view advice;  // what its owner can do; {path} and {folder} stand for what was named
};

// Told by content; nullptr where it is none of them. The result outlives the call.
// `head`: the first bytes of a file, 512 where there are as many; `tail`: the last 8.
const Foreign* foreign_content(std::string_view head, std::string_view tail);
// By the names of a zip archive's members. Archives of torch.save are none of them, damaged or not.
const Foreign* foreign_archive(std::span<const std::string> members);
const Foreign& foreign_tar(std::span<const std::string> members);
// By the names of a folder's entries.
const Foreign* foreign_folder(std::span<const std::string> entries);
bool is_root_of_deepspeed(std::span<const std::string> entries);
// "s3://bucket/ckpt": a path that names a place outside of this machine's file systems.
const Foreign* foreign_address(std::string_view path);

// A file that was not fetched: a Git LFS pointer, an error page.
const Foreign* foreign_stand_in(const RandomAccess& file);
// All of the above that concern a file. nullptr for files of torch.save, damaged or not.
const Foreign* foreign_file(const RandomAccess& file);

// Throws Unsupported. `path` as the user named it.
[[noreturn]] void refuse_foreign(const Foreign& foreign, const std::filesystem::path& path);
// The same where the path is an address. `hint`: what to do; default: what copies it here.
void refuse_address(const std::filesystem::path& path, std::string hint = {});

}  // namespace ckpt
