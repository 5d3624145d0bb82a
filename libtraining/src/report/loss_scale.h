#pragma once

#include <optional>

#include <training/opened_training.h>

namespace optim {

// The scale of Megatron's grad scaler, which fp16 training keeps beside its optimizer.
std::optional<double> loss_scale_of(const OpenedTraining& checkpoint);

}  // namespace optim
