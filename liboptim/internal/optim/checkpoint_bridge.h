#pragma once

#include <ATen/core/Tensor.h>

#include <ckpt/checkpoint.h>
#include <ckpt/dtype.h>
#include <optim/export.h>
#include <optim/sharded_tensor.h>

namespace optim {

// Between libckpt's bytes and LibTorch's tensors.

at::ScalarType scalar_type(ckpt::DType dtype);
// Throws Error(Unsupported) for types that no checkpoint format holds (quantised ones).
OPTIM_EXPORT ckpt::DType dtype_of(at::ScalarType type);

// A whole tensor, contiguous, on the CPU. `entry` may have any chunks that lie in the checkpoint's
// files. Throws what Checkpoint::read throws.
OPTIM_EXPORT at::Tensor load_tensor(const ckpt::Checkpoint& checkpoint,
                                    const ckpt::TensorEntry& entry);

// A tensor as state dicts carry it, and back. The handle keeps the tensor alive and shares its
// storage; two handles of one tensor have one identity.
TensorHandle handle_of(const at::Tensor& tensor);
at::Tensor tensor_of(const TensorHandle& handle);

}  // namespace optim
