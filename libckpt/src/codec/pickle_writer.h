#pragma once

#include <string>

#include <ckpt/value_tree.h>

namespace ckpt::pickle {

// Writes the tree as one pickle. Protocol 2 is what torch.save uses, 4 what .metadata has.
// What was shared is shared again, dictionaries keep their order, objects their callable,
// arguments, elements, items and state. No recursion. Throws Error(Unsupported) for what the
// protocol cannot say (a tuple that contains itself, a class name with a dot or a line break in
// protocol 2).
std::string write(const ValueTree& tree, int protocol);

}  // namespace ckpt::pickle
