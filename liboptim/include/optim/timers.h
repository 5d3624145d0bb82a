#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace optim {

// Called when a section of a step begins and ends. Sections have the reference's names:
// "optimizer-clip-main-grad", "params-all-gather", ...
enum class TimerEvent : uint8_t { Start, Stop };
using TimerFn = std::function<void(std::string_view section, TimerEvent event)>;

}  // namespace optim
