#pragma once

#include <string>
#include <string_view>

#include <ckpt/extents.h>

// Names and shapes as listings, records and messages print them.
namespace ckpt {

// "FILE:KEY", or the key alone where it has no file; a key as printed_key() prints it.
std::string qualified_key(std::string_view file, std::string_view key);

std::string shape_text(const Extents& shape);  // "[2, 16]", "[]"
std::string tuple_text(const Extents& shape);  // "(2, 16)", "()"

}  // namespace ckpt
