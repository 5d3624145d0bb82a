#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace optim {

// What the module liboptim_nccl.so holds: it links LibTorch's CUDA part, this library does not.
// Gives `group` NCCL as its backend for tensors on GPUs. Throws LibTorch's errors.
using AddNccl = void (*)(c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Store>& store,
                         std::chrono::milliseconds timeout);
constexpr const char* kAddNccl = "shardwise_add_nccl";

}  // namespace optim
