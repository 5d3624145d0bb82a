#pragma once

#include <string>
#include <string_view>

namespace optim {

// The module of a model that a key belongs to, with dots: up to the first number, or without the
// parameter's own name: "decoder.layers.0", "embedding.word_embeddings". State of an optimizer
// belongs to its parameter's module, or to "optimizer" where keys number parameters; "model" and
// "state_dict" in front are left out.
std::string module_of_key(std::string_view key);

}  // namespace optim
