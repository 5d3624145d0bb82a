#pragma once

#include <span>

#include <training/report_page.h>

namespace optim {

// Marks what is conspicuous: values that are not finite; optimizer state that is zero everywhere;
// state whose root mean square is far from the median of its kind.
void add_marks(std::span<ReportedTensor> tensors);

}  // namespace optim
