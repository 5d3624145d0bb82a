// The one line of the terminal that is drawn in place.
#include "common/status_line.h"

#include <iostream>

namespace tools {
namespace {

constexpr std::string_view kWipe = "\r\033[K";

}  // namespace

void StatusLine::draw(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  if (is_closed_) return;
  std::cout.flush();  // before the line, not over it
  std::cerr << '\r' << text << "\033[K" << std::flush;
  stands_ = true;
}

void StatusLine::wipe() {
  const std::scoped_lock lock(mutex_);
  if (stands_) std::cerr << kWipe << std::flush;
  stands_ = false;
}

void StatusLine::close() {
  is_closed_ = true;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !stands_) return;
  std::cerr << kWipe << std::flush;
  stands_ = false;
}

}  // namespace tools
