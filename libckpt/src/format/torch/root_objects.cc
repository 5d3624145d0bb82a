// What of a torch.save file is listed as an object.
#include "format/torch/torch_save.h"
#include "format/values/json_pointer.h"

namespace ckpt {
namespace {

void add_attributes(const Value& value, const TensorView& tensor, const std::string& pointer,
                    std::vector<RootObject>& objects) {
  for (const TensorAttribute& attribute : attributes_of(value.tree(), tensor)) {
    objects.push_back({pointer + pointer_step("@" + attribute.name), attribute.value.id()});
  }
}

}  // namespace

std::vector<RootObject> root_objects(const Document& document) {
  const Value root = document.tree.root();
  std::vector<RootObject> objects;
  if (!root.is(Kind::Dict)) {
    if (const auto tensor = as_tensor(root)) {
      add_attributes(root, *tensor, "", objects);
    } else {
      objects.push_back({"", root.id()});
    }
    return objects;
  }
  for (size_t i = 0; i < root.item_count(); ++i) {
    const auto [key, value] = root.item(i);
    const std::string pointer = pointer_step(key_text(key));
    if (const auto tensor = as_tensor(value)) {
      add_attributes(value, *tensor, pointer, objects);
    } else {
      objects.push_back({pointer, value.id(), key.kind()});
    }
  }
  return objects;
}

}  // namespace ckpt
