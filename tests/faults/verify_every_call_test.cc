// A process that could not look at its share never says that the share is sound.
#include <ckpt/verify.h>
#include <training/opened_training.h>

#include <boost/test/unit_test.hpp>

#include "faults/conversions.h"
#include "support/errors.h"
#include "support/faulty_calls.h"

using namespace test;

namespace {

struct Seen {
  uint64_t checksums = 0, read_bytes = 0;
  std::array<uint64_t, ckpt::kByteLabelCount> labelled_bytes = {};
  size_t findings = 0;
  bool operator==(const Seen&) const = default;
};

Seen seen_of(const ckpt::Findings& findings) {
  Seen seen{findings.compared_checksums, findings.read_bytes, {}, findings.findings.size()};
  for (size_t label = 0; label < ckpt::kByteLabelCount; ++label) {
    seen.labelled_bytes[label] = findings.labelled_bytes(static_cast<ckpt::ByteLabel>(label));
  }
  return seen;
}

// Larger than what is read at once, and in more pieces than processes.
fs::path archive_in(const TemporaryFolder& folder) {
  const Conversion conversion = shared_conversion_in(folder);
  optim::ConvertOptions options = on_one_thread();
  options.base.format = ckpt::Format::Torch;
  optim::convert(conversion.source, folder / "archive.pt", options);
  return folder / "archive.pt";
}

class Share {
 public:
  Share(const fs::path& path, uint32_t rank) : checkpoint_(optim::open_checkpoint(path)) {
    options_.share = {rank, 2, 128 << 10};
    options_.execution.threads = 1;
  }

  std::optional<ckpt::Error> look(ckpt::SystemCalls& calls, Seen& seen) const {
    const ckpt::InstalledSystemCalls installed(calls);
    return error_of([&] { seen = seen_of(ckpt::verify(checkpoint_, options_)); });
  }

 private:
  ckpt::Checkpoint checkpoint_;
  ckpt::VerifyOptions options_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(verify_every_call)

BOOST_AUTO_TEST_CASE(of_a_share_of_one_archive_fails_and_the_share_is_not_called_sound) {
  const TemporaryFolder folder;
  const fs::path path = archive_in(folder);
  for (const uint32_t rank : {0U, 1U}) {
    const Share share(path, rank);
    FaultyCalls clean;
    Seen expected;
    BOOST_REQUIRE(!share.look(clean, expected));
    BOOST_TEST_REQUIRE(expected.checksums > 1);
    for (uint64_t number = 0; number < clean.count(); ++number) {
      FaultyCalls calls({Fault::Kind::Fails, number, EIO});
      Seen seen;
      const auto error = share.look(calls, seen);
      BOOST_TEST((error || seen == expected),
                 "rank " << rank << ": EIO in call " << number << ", " << clean.name(number));
      BOOST_TEST((error || clean.name(number) != "pread"), "pread " << number << " did not matter");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
