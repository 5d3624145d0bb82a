#pragma once

#include <map>
#include <string>
#include <vector>

#include <replay/replay.h>

namespace optim {

// Which arguments explain a difference: the same steps are replayed with and without each.

struct BisectTrial {
  std::vector<std::string> arguments;  // of the other configuration that counted
  bool passed = false, identical = false;
};

struct BisectReport {
  std::vector<BisectTrial> trials;     // the first with none of them, the second with all
  bool is_explained = false;           // with all the outcome is better than with none
  std::vector<std::string> arguments;  // that it takes: leaving out one of them loses that
};

// Replays `options` once with its overrides, once with those of `other` above them, and once for
// each of `other`'s arguments without it. Better is identical to what is expected, or within its
// tolerance. Throws what replay() throws; InvalidArgument where nothing is expected, where an
// output is asked for, where several processes replay, and where `other` is empty.
BisectReport bisect(const ReplayOptions& options, const std::map<std::string, std::string>& other);

}  // namespace optim
