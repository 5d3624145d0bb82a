// What a tensor is besides its elements: attributes, class, requires_grad.
#include <ckpt/document.h>

namespace ckpt {
namespace {

void add_items(const Value& items, std::vector<TensorAttribute>& attributes) {
  for (size_t i = 0; i < items.item_count(); ++i) {
    const auto [key, value] = items.item(i);
    attributes.push_back({key_text(key), value});
  }
}

// A dict, or a pair of them: that of the instance and that of its slots (torch._utils
// _set_obj_state). A class with __setstate__ may be given anything.
void add_state(const Value& state, std::vector<TensorAttribute>& attributes) {
  if (state.is_none()) return;
  if (state.is(Kind::Dict)) return add_items(state, attributes);
  const auto is_part = [](const Value& part) { return part.is_none() || part.is(Kind::Dict); };
  const bool is_pair =
      state.is(Kind::Tuple) && state.size() == 2 && is_part(state[0]) && is_part(state[1]);
  if (!is_pair) return attributes.push_back({"__setstate__", state});
  for (size_t i = 0; i < 2; ++i) add_state(state[i], attributes);
}

}  // namespace

std::vector<TensorAttribute> attributes_of(const ValueTree& tree, const TensorView& tensor) {
  std::vector<TensorAttribute> attributes;
  if (tensor.attributes) add_state(tree.value(*tensor.attributes), attributes);
  if (tensor.subclass) attributes.push_back({"__class__", tree.value(*tensor.subclass)});
  if (tensor.requires_grad) {
    attributes.push_back({"requires_grad", tree.value(tensor.requires_grad_node)});
  }
  return attributes;
}

}  // namespace ckpt
