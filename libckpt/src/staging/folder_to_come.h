#pragma once

#include <map>
#include <memory>
#include <string>

#include <ckpt/folder.h>

namespace ckpt {

using HeldTexts = std::map<std::string, std::shared_ptr<const std::string>>;  // by key

// A bucket as it will be when these small objects are put into it, too.
std::shared_ptr<const Folder> folder_to_come(std::shared_ptr<const Folder> bucket, HeldTexts held);

}  // namespace ckpt
