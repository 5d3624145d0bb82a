// What modules keep beside their parameters.
#include "state/extra_states.h"

namespace optim {

bool holds_bytes(const ckpt::Document& extra_state) {
  const ckpt::Value root = extra_state.tree.root();
  if (root.is_none()) return false;
  const auto tensor = ckpt::as_tensor(root);
  return !tensor || ckpt::element_count(tensor->shape) != 0;
}

}  // namespace optim
