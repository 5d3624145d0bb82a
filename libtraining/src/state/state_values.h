#pragma once

#include <string>

#include <ckpt/document.h>

namespace optim {

// The attributes of the argparse.Namespace under "args" of a common state. Throws Corrupt, with
// that file, where there is none.
ckpt::Value attributes_of_args(const ckpt::Value& common_root, const std::string& file);

// Whether what a module keeps beside its parameters is more than None or an empty tensor, which
// TransformerEngine writes where it has no fp8 scales.
bool holds_bytes(const ckpt::Document& extra_state);

}  // namespace optim
