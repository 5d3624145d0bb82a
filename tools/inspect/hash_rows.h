#pragma once

#include <string>
#include <utility>

#include <ckpt/hash.h>
#include <common/text.h>

#include "inspect/listing.h"

namespace tools::inspect {

// A line of `ckpt-inspect hash`, but for the hash.
struct HashRow {
  std::string dtype, shape, name;
};

// Calls visit(HashRow, row) for each line in their order; `row` is a TensorHash or an ObjectHash.
template <class Hashes, class Visit>
void for_each_row(Hashes& hashes, Visit visit) {
  const auto visit_tensor = [&](auto& tensor, const std::string& owner) {
    visit(HashRow{std::string(name(tensor.dtype)), shape_text(tensor.shape),
                  owner + qualified_key(tensor.file, tensor.key)},
          tensor);
  };
  for (auto& tensor : hashes.tensors) visit_tensor(tensor, "");
  for (auto& object : hashes.objects) {
    const std::string object_name = qualified_key(object.file, object.key);
    visit(HashRow{"object", "-", object_name}, object);
    for (auto& tensor : object.tensors) visit_tensor(tensor, object_name + " ");
  }
}

}  // namespace tools::inspect
