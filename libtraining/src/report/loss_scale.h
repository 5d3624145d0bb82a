#pragma once

#include <optional>

#include <ckpt/checkpoint.h>

namespace optim {

// The scale of Megatron's grad scaler, which fp16 training keeps beside its optimizer.
std::optional<double> loss_scale_of(const ckpt::Checkpoint& checkpoint);

}  // namespace optim
