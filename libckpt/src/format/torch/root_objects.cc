// What of a torch.save file is listed as an object.
#include "format/torch/torch_save.h"
#include "format/values/json_pointer.h"

namespace ckpt {
namespace {

void add_value(const Value& value, const std::string& pointer, Kind key_kind,
               std::vector<RootObject>& objects) {
  const auto tensor = as_tensor(value);
  if (!tensor) return objects.push_back({pointer, value.id(), key_kind});
  for (const TensorAttribute& attribute : attributes_of(value.tree(), *tensor)) {
    objects.push_back({pointer + pointer_step("@" + attribute.name), attribute.value.id()});
  }
}

}  // namespace

std::vector<RootObject> root_objects(const Document& document) {
  const Value root = document.tree.root();
  std::vector<RootObject> objects;
  if (!root.is(Kind::Dict)) {
    add_value(root, "", Kind::Str, objects);
    return objects;
  }
  for (size_t i = 0; i < root.item_count(); ++i) {
    const auto [key, value] = root.item(i);
    add_value(value, pointer_step(key_text(key)), key.kind(), objects);
  }
  return objects;
}

}  // namespace ckpt
