#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <common/conversion.h>

namespace tools {

// --follow: each iteration of a root once, when it is complete, until a signal comes.
struct FollowOptions {
  bool is_on = false;
  int64_t every = 1;  // iterations that are a multiple
  std::optional<int64_t> until;
  uint32_t poll_seconds = 30;

  void declare(CLI::App& app);
};

// Converts each into a folder of its name below the destination, by one call of `convert`; those
// that are there already are done. Between two looks at the root it waits. One that is not
// complete, or cannot be converted, is said once, and tried again when its files change. Returns 0
// where `until` is done, 128 + signal where one came between two; throws InvalidArgument for
// options that ask for one conversion.
int follow(const FollowOptions& options, const ConversionOptions& conversion, Console& console,
           const std::function<int(const ConversionOptions&)>& convert);

}  // namespace tools
