// Files that change while they are read, by the classes of docs/security.md.
#include <ckpt/checkpoint.h>
#include <ckpt/document.h>

#include <boost/test/unit_test.hpp>

#include "support/convention.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace fs = std::filesystem;
using ckpt::ErrorCode;

namespace {

constexpr const char* kGolden = "lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003";

struct Opened {
  Opened() {
    for (const auto& entry : fs::directory_iterator(test::golden(kGolden))) {
      fs::copy(entry.path(), folder.path() / entry.path().filename());
    }
    checkpoint.emplace(test::open_checkpoint(folder.path()));
  }

  const ckpt::TensorEntry& tensor() const { return checkpoint->catalog().tensors.front(); }
  fs::path file() const {
    return folder.path() / checkpoint->catalog().files[tensor().chunks[0].region.file].path;
  }
  std::vector<std::byte> read() const {
    std::vector<std::byte> bytes(ckpt::count_bytes(tensor()));
    checkpoint->read(tensor(), ckpt::whole(tensor().shape), bytes);
    return bytes;
  }

  test::TemporaryFolder folder;
  std::optional<ckpt::Checkpoint> checkpoint;
};

void zero(const fs::path& path, uint64_t count_bytes) {
  fs::remove(path);
  test::write_file(path, std::string(count_bytes, '\0'));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(corrupt_changing_files)

BOOST_AUTO_TEST_CASE(F2_a_file_that_shrinks_after_it_was_opened_is_told_and_kills_nobody) {
  const Opened opened;
  opened.read();
  fs::resize_file(opened.file(), 100);
  const auto error = test::error_of([&] { opened.read(); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::IoFailure), error->what());
  BOOST_TEST(error->where().file == opened.file().filename().string());
  BOOST_TEST(error->where().offset_bytes.has_value());
}

BOOST_AUTO_TEST_CASE(F2_a_file_of_another_size_than_when_it_was_listed_is_told) {
  const Opened opened;
  fs::resize_file(opened.file(), fs::file_size(opened.file()) + 1);
  const auto error = test::error_of([&] { opened.read(); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt), error->what());
  BOOST_TEST(test::contains(error->problem(), "changed while it was read"), error->what());
}

// Opened once: another file under the same name is not what was looked at.
BOOST_AUTO_TEST_CASE(F5_a_file_that_was_read_stays_the_one_that_is_read) {
  const Opened opened;
  const auto before = opened.read();
  zero(opened.file(), fs::file_size(opened.file()));
  BOOST_TEST((opened.read() == before));
}

BOOST_AUTO_TEST_CASE(F5_a_file_that_is_replaced_before_it_is_read_must_still_hold_the_entries) {
  const Opened opened;
  zero(opened.file(), fs::file_size(opened.file()));
  const auto error = test::error_of([&] { opened.read(); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt), error->what());
}

BOOST_AUTO_TEST_SUITE_END()
