#pragma once

#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>

namespace optim {

// The attributes of the argparse.Namespace under "args" of a common state. Throws Corrupt, with
// that file, where there is none.
ckpt::Value attributes_of_args(const ckpt::Value& common_root, const std::string& file);

// Whether what a module keeps beside its parameters is more than None or an empty tensor, which
// TransformerEngine writes where it has no fp8 scales.
bool holds_bytes(const ckpt::Document& extra_state);

// The tensors of an object's value, as entries that can be read: each under `key` and its JSON
// pointer within `value`. Throws Corrupt where a storage is missing or not as long as is stated.
std::vector<ckpt::TensorEntry> tensors_of_object(const ckpt::Document& document,
                                                 const ckpt::Value& value, const std::string& key);

// What an object holds: torch.save was given a list of it alone. Throws Corrupt for another value.
ckpt::Value only_object(const ckpt::Document& document, const std::string& key);

}  // namespace optim
