#pragma once

#include <common/conversion.h>

namespace tools {

// What ckpt-convert and reshard end with, as text or JSON: what was written, what is in it, what
// was left out or not carried and why, what was proven. Under --quiet what is missing alone.
void print_conversion(Console& console, const ConversionOptions& options,
                      const optim::ConvertReport& report);

}  // namespace tools
