#pragma once

#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>

namespace optim {

// The tensors of an object's value, as entries that can be read: each under `key` and its JSON
// pointer within `value`. Throws Corrupt where a storage is missing or not as long as is stated.
std::vector<ckpt::TensorEntry> tensors_of_object(const ckpt::Document& document,
                                                 const ckpt::Value& value, const std::string& key);

// What an object holds: torch.save was given a list of it alone. Throws Corrupt for another value.
ckpt::Value only_object(const ckpt::Document& document, const std::string& key);

}  // namespace optim
