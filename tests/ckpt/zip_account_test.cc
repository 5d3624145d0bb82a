#include "codec/zip.h"

#include <boost/test/unit_test.hpp>

#include "codec/crc32.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/zip_directory.h"

using ckpt::ByteLabel;
using ckpt::ByteRange;
using ckpt::ErrorCode;

namespace {

// An archive between other bytes of a file, as in a .distcp file.
class HeldFile final : public ckpt::RandomAccess {
 public:
  explicit HeldFile(std::string content) : content_(std::move(content)) {}
  uint64_t size_bytes() const override { return content_.size(); }
  const std::string& file_name() const override { return name_; }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    const auto bytes = std::as_bytes(std::span(content_)).subspan(offset_bytes, out.size());
    std::ranges::copy(bytes, out.begin());
  }

 private:
  std::string content_;
  std::string name_ = "f";
};

struct Account {
  std::vector<ckpt::zip::Member> members;
  std::vector<ckpt::zip::AccountedRange> ranges;
};

Account account(const std::string& archive) {
  const HeldFile file("before" + archive + "after");
  const ByteRange range{6, archive.size()};
  Account result;
  result.members = ckpt::zip::read_directory(file, range);
  result.ranges = ckpt::zip::account_archive(file, range, result.members);
  return result;
}

// What ckpt writes: one member of `data`.
std::string archive_of(const std::string& name, const std::string& data) {
  ckpt::zip::Layout layout;
  layout.add(name, data.size());
  const uint32_t crc = ckpt::crc32(std::as_bytes(std::span(data)));
  return layout.local_header(0) + data + layout.descriptor(0, crc) +
         test::directory_of(layout, std::span(&crc, 1));
}

void expect_corrupt(const std::string& archive, const std::string& problem) {
  const auto error = test::error_of([&] { account(archive); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
  BOOST_TEST(test::contains(error->what(), problem), error->what());
}

BOOST_AUTO_TEST_SUITE(account_archive)

BOOST_AUTO_TEST_CASE(gives_each_byte_one_label) {
  for (const char* sample : {"bare_tensor.pt", "zip.pt"}) {
    const std::string content =
        test::read_file(test::golden(std::string("torch_save_zip/") + sample));
    const Account found = account(content);
    uint64_t position = 6;
    size_t data_count = 0;
    for (const auto& range : found.ranges) {
      BOOST_TEST(range.bytes.offset_bytes == position);
      position = range.bytes.end_bytes();
      BOOST_TEST((range.label != ByteLabel::Unclaimed));
      if (range.member == ckpt::zip::kNoMember) continue;
      ++data_count;
      BOOST_TEST((range.bytes == found.members[range.member].data));
    }
    BOOST_TEST(position == 6 + content.size());
    BOOST_TEST(data_count == found.members.size());
  }
}

BOOST_AUTO_TEST_CASE(refuses_an_extra_field_that_does_not_fill_its_place) {
  std::string archive = archive_of("a", "data");
  BOOST_TEST(account(archive).members.size() == 1u);
  constexpr size_t kExtraField = 30 + 1;  // behind header and name: id, size
  ++archive[kExtraField + 2];
  expect_corrupt(archive, "extra field");
}

BOOST_AUTO_TEST_CASE(refuses_a_promised_descriptor_that_is_missing) {
  std::string archive = archive_of("a", "data");
  const size_t descriptor = archive.find("PK\x07\x08");
  BOOST_REQUIRE(descriptor != archive.npos);
  archive[descriptor] = 'X';
  expect_corrupt(archive, "descriptor of zip member 'a' is missing");
}

BOOST_AUTO_TEST_CASE(says_that_bytes_between_members_belong_to_nothing) {
  ckpt::zip::Layout layout;
  layout.add("a", 4);
  const uint32_t crc = ckpt::crc32(std::as_bytes(std::span("data", 4)));
  const std::string gap(40, '!');
  std::string end = test::directory_of(layout, std::span(&crc, 1));
  const std::string body = layout.local_header(0) + "data" + layout.descriptor(0, crc);
  // The directory starts later: in the ZIP64 end record (offset 48) and its locator (offset 8).
  const size_t zip64_end = end.find("PK\x06\x06"), locator = end.find("PK\x06\x07");
  end[zip64_end + 48] = static_cast<char>(end[zip64_end + 48] + 40);
  end[locator + 8] = static_cast<char>(end[locator + 8] + 40);
  const size_t last = end.rfind("PK\x05\x06");
  end[last + 16] = static_cast<char>(end[last + 16] + 40);
  const Account found = account(body + gap + end);
  const auto unclaimed =
      std::ranges::find(found.ranges, ByteLabel::Unclaimed, &ckpt::zip::AccountedRange::label);
  BOOST_REQUIRE(unclaimed != found.ranges.end());
  BOOST_TEST((unclaimed->bytes == ByteRange{6 + body.size(), 40}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
