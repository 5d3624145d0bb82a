// What a folder of remote_folder() knows beside reading.
#pragma once

#include <filesystem>
#include <memory>

#include <ckpt/folder.h>

#include "remote/s3_writer.h"

namespace ckpt {

// Whether what is at this path is an object in a store that can be read and written.
bool is_in_store(const std::filesystem::path& path);

// Writes to the bucket of an address, as who reads it. Throws Unsupported where what is read there
// comes from no remote_folder(); as read_aws_settings().
std::shared_ptr<S3Writer> writer_to(const std::filesystem::path& address);

// What is read of an address, where nothing of it has been seen yet. Throws as above.
std::shared_ptr<const Folder> seen_anew(const std::filesystem::path& address);

}  // namespace ckpt
