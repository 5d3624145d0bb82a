#pragma once

#include <memory>

#include <ckpt/folder.h>

namespace optim {

// The local disk without rank files of optimizers: what is left out need not be readable.
std::shared_ptr<const ckpt::Folder> model_folder();

}  // namespace optim
