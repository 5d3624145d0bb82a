#pragma once

#include <training/convert.h>

#include "convert/write_named.h"

namespace optim {

// A conversion of what is not a checkpoint of Megatron's: a plain state dict. Throws Unsupported
// for options that need one.
ConvertReport convert_plain(Job job, const ConvertOptions& options);

}  // namespace optim
