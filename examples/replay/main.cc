// usage: example TRACE.json. Takes recorded steps of an optimizer again, and says how far the
// results are from the recorded ones.
#include <cstdio>

#include <ckpt/error.h>
#include <replay/trace.h>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s TRACE.json\n", argv[0]);
    return 2;
  }
  try {
    const optim::TraceReport report = optim::check_trace(argv[1]);
    std::printf("%s: %lld steps, the worst is %s, by %g of its largest element\n",
                report.name.c_str(), static_cast<long long>(report.steps),
                report.worst.tensor.c_str(), report.worst.difference.max_scaled);
    return report.passed ? 0 : 1;
  } catch (const ckpt::Error& error) {  // not there, or no trace
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
