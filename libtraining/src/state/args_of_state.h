#pragma once

#include <string>

#include <ckpt/value.h>

namespace optim {

// The attributes of the argparse.Namespace under "args" of a common state. Throws Corrupt, with
// that file, where there is none.
ckpt::Value attributes_of_args(const ckpt::Value& common_root, const std::string& file);

}  // namespace optim
