#pragma once

namespace tools {

// The whole of each program but step-replay, which needs LibTorch: one binary has them all.
int run_inspect(int argc, char** argv);
int run_convert(int argc, char** argv);
int run_reshard(int argc, char** argv);

}  // namespace tools
