#include "codec/zip.h"

#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>
#include <random>

#include "codec/crc32.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/memory_payloads.h"
#include "support/zip_directory.h"

using ckpt::ByteRange;
using ckpt::ErrorCode;
using ckpt::zip::Layout;
using ckpt::zip::Member;
using test::bytes_of;
using test::MemoryFile;

namespace {

std::vector<Member> read_all(const std::string& content) {
  return ckpt::zip::read_directory(MemoryFile(content), {0, content.size()});
}

using Content = std::pair<std::string, std::string>;  // name, data

struct Archive {
  Layout layout;
  std::string bytes;
};

// An archive in memory; `crcs` overrides the real checksums.
Archive make_archive(const std::vector<Content>& members, std::vector<uint32_t> crcs = {}) {
  Archive archive;
  for (const auto& [name, data] : members) archive.layout.add(name, data.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string& data = members[i].second;
    if (crcs.size() == i) crcs.push_back(ckpt::crc32(bytes_of(data)));
    archive.bytes += archive.layout.local_header(i) + data + archive.layout.descriptor(i, crcs[i]);
  }
  archive.bytes += test::directory_of(archive.layout, crcs);
  return archive;
}

const std::vector<Content> kSmall = {{"a/data.pkl", "pickle"},
                                     {"a/data/0", std::string(100, 'x')},
                                     {"a/data/1", ""},
                                     {"a/version", "3\n"}};

// The archive of a file, built again from what the reader finds in it.
std::string rebuilt(const std::string& file) {
  std::vector<Content> members;
  std::vector<uint32_t> crcs;
  for (const Member& member : read_all(file)) {
    members.emplace_back(member.name,
                         file.substr(member.data.offset_bytes, member.data.count_bytes));
    crcs.push_back(member.crc32.value_or(0));
  }
  return make_archive(members, crcs).bytes;
}

std::string hex_of(const std::string& bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

// A huge file that is zero but for some pieces.
class SparseFile final : public ckpt::RandomAccess {
 public:
  void put(uint64_t offset_bytes, std::string bytes) {
    size_bytes_ = std::max<uint64_t>(size_bytes_, offset_bytes + bytes.size());
    pieces_[offset_bytes] = std::move(bytes);
  }
  uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& file_name() const override { return name_; }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
    for (const auto& [start, bytes] : pieces_) {
      for (size_t i = 0; i < bytes.size(); ++i) {
        const uint64_t at = start + i;
        if (at >= offset_bytes && at - offset_bytes < out.size()) {
          out[at - offset_bytes] = static_cast<std::byte>(bytes[i]);
        }
      }
    }
  }

 private:
  std::map<uint64_t, std::string> pieces_;
  uint64_t size_bytes_ = 0;
  std::string name_ = "sparse";
};

}  // namespace

BOOST_AUTO_TEST_SUITE(zip)

BOOST_AUTO_TEST_CASE(crc32_is_the_one_of_zip_and_can_be_joined) {
  const std::string text = "123456789";
  BOOST_TEST(ckpt::crc32(bytes_of(text)) == 0xCBF43926u);
  BOOST_TEST(ckpt::crc32({}) == 0u);
  std::mt19937 random(3);
  std::string content(5000, '\0');
  for (char& c : content) c = static_cast<char>(random());
  for (const size_t cut : {0u, 1u, 63u, 2500u, 4999u, 5000u}) {
    const std::string first = content.substr(0, cut), second = content.substr(cut);
    const uint32_t both = ckpt::crc32_of_both(ckpt::crc32(bytes_of(first)),
                                              ckpt::crc32(bytes_of(second)), second.size());
    BOOST_TEST(both == ckpt::crc32(bytes_of(content)));
    BOOST_TEST(ckpt::crc32(bytes_of(second), ckpt::crc32(bytes_of(first))) == both);
  }
}

BOOST_AUTO_TEST_CASE(archives_that_pytorch_wrote_are_rebuilt_byte_for_byte) {
  const std::string iteration = "lw_muon_bf16_torch_dp2/ckpt/iter_0000003/mp_rank_00/";
  for (const std::string& path :
       {std::string("torch_save_zip/zip.pt"), std::string("torch_save_zip/zip_nocrc.pt"),
        std::string("torch_save_zip/bare_tensor.pt"), std::string("torch_save_zip/empty_list.pt"),
        iteration + "layer_wise_optimizer_0.pt", iteration + "layer_wise_optimizer_1.pt",
        iteration + "model_optim_rng.pt",
        std::string("lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003/common.pt")}) {
    const std::string file = test::read_file(test::golden(path));
    BOOST_TEST(rebuilt(file) == file, path);
  }
}

BOOST_AUTO_TEST_CASE(members_come_with_their_place_in_the_file_and_their_checksum) {
  const std::string archive = make_archive(kSmall).bytes;
  const MemoryFile file("before" + archive + "behind");
  const auto members = ckpt::zip::read_directory(file, {6, archive.size()});
  BOOST_REQUIRE(members.size() == kSmall.size());
  for (size_t i = 0; i < members.size(); ++i) {
    BOOST_TEST(members[i].name == kSmall[i].first);
    BOOST_TEST((members[i].data.offset_bytes - 6) % Layout::kAlignmentBytes == 0);
    std::string data(members[i].data.count_bytes, '\0');
    file.read_at(members[i].data.offset_bytes, std::as_writable_bytes(std::span(data)));
    BOOST_TEST(data == kSmall[i].second);
    BOOST_TEST(members[i].crc32.value() == ckpt::crc32(bytes_of(data)));
  }
}

BOOST_AUTO_TEST_CASE(a_checksum_of_zero_beside_data_is_no_checksum) {
  const auto members = read_all(make_archive(kSmall, {0, 0, 0, 0}).bytes);
  BOOST_TEST(!members[0].crc32.has_value());
  BOOST_TEST(members[2].crc32.value() == 0u);  // of no bytes
}

BOOST_AUTO_TEST_CASE(an_archive_without_members_is_one) {
  BOOST_TEST(read_all(make_archive({}).bytes).empty());
}

// Recorded from torch.save of [uint8[5], uint8[2^32 + 10], uint8[7], uint8[0]] by torch 2.11.0.
BOOST_AUTO_TEST_CASE(beyond_4_gib_the_layout_is_that_of_pytorch) {
  Layout layout;
  const uint64_t large = (uint64_t{1} << 32) + 10;
  const std::pair<std::string, uint64_t> members[] = {{"data.pkl", 311},
                                                      {".format_version", 1},
                                                      {".storage_alignment", 2},
                                                      {"byteorder", 6},
                                                      {"data/0", 5},
                                                      {"data/1", large},
                                                      {"data/2", 7},
                                                      {"data/3", 0},
                                                      {"version", 2},
                                                      {".data/serialization_id", 40}};
  for (const auto& [name, count_bytes] : members) layout.add("big/" + name, count_bytes);
  const auto& places = layout.places();
  BOOST_TEST(places[5].header_offset_bytes == 853);
  BOOST_TEST(places[5].data_offset_bytes == 960);
  BOOST_TEST(places[6].header_offset_bytes == 4294968290);
  BOOST_TEST(places[6].data_offset_bytes == 4294968384);
  BOOST_TEST(places[7].header_offset_bytes == 4294968415);
  BOOST_TEST(places[8].header_offset_bytes == 4294968512);
  BOOST_TEST(places[9].data_offset_bytes == 4294968704);
  BOOST_TEST(layout.count_bytes() == 4294969537);
  BOOST_TEST(hex_of(layout.local_header(5)).substr(0, 128) ==
             "504b0304000008080000000000000000000000000000000000000a0043006269672f646174612f31"
             "010010000a00000001000000000000000000000046422b00");
  BOOST_TEST(hex_of(layout.local_header(6)).substr(0, 112) ==
             "504b0304000008080000000000000000000000000000000000000a0036006269672f646174612f32"
             "01000800e20300000100000046422600");
  BOOST_TEST(hex_of(layout.descriptor(5, 0x6b87b1ec)) ==
             "504b0708ecb1876b0a000000010000000a00000001000000");
  BOOST_TEST(hex_of(layout.descriptor(6, 0xad5809f9)) ==
             "504b0708f90958ad07000000000000000700000000000000");
  BOOST_TEST(layout.descriptor(7, 0).empty());
  const std::string directory = test::directory_of(
      layout, std::vector<uint32_t>{0x0d83a157, 0x83dcefb7, 0xe971773f, 0x19e33d85, 0x515ad3cc,
                                    0x6b87b1ec, 0xad5809f9, 0, 0x55679ed1, 0x319fba07});
  BOOST_TEST(directory.size() == 671 + 98);
  BOOST_TEST(
      test::contains(hex_of(directory),
                     "504b0102000000000808000000000000ecb1876bffffffffffffffff0a00140000000000"
                     "00000000000055030000"
                     "6269672f646174612f31"
                     "010010000a000000010000000a00000001000000"));
  BOOST_TEST(
      test::contains(hex_of(directory),
                     "504b01020000000000080000000000000000000000000000000000000a000c0000000000"
                     "000000000000ffffffff"
                     "6269672f646174612f33"
                     "010008005f04000001000000"));
  BOOST_TEST(hex_of(directory.substr(671)) ==
             "504b06062c000000000000001e032d0000000000000000000a000000000000000a00000000000000"
             "9f02000000000000c005000001000000"
             "504b0607000000005f0800000100000001000000"
             "504b0506000000000a000a009f020000ffffffff0000");
}

BOOST_AUTO_TEST_CASE(archives_beyond_4_gib_are_read) {
  Layout layout;
  const uint64_t large = (uint64_t{5} << 30) + 3;
  layout.add("a/data.pkl", 6);
  layout.add("a/data/0", large);
  layout.add("a/data/1", 7);
  SparseFile file;
  const std::vector<uint32_t> crcs = {1, 2, 3};
  for (size_t i = 0; i < 3; ++i) {
    const auto& place = layout.places()[i];
    file.put(place.header_offset_bytes, layout.local_header(i));
    file.put(place.data_offset_bytes + place.count_bytes, layout.descriptor(i, crcs[i]));
  }
  file.put(layout.directory_offset_bytes(), test::directory_of(layout, crcs));
  const auto members = ckpt::zip::read_directory(file, {0, file.size_bytes()});
  BOOST_REQUIRE(members.size() == 3);
  BOOST_TEST(members[1].data.count_bytes == large);
  BOOST_TEST(members[2].data.offset_bytes == layout.places()[2].data_offset_bytes);
  BOOST_TEST(members[2].crc32.value() == 3u);
}

BOOST_AUTO_TEST_CASE(more_than_65535_members_are_read) {
  std::vector<Content> many;
  for (int i = 0; i < 70000; ++i) many.emplace_back("a/data/" + std::to_string(i), "x");
  const auto members = read_all(make_archive(many).bytes);
  BOOST_REQUIRE(members.size() == many.size());
  BOOST_TEST(members.back().name == "a/data/69999");
}

BOOST_AUTO_TEST_CASE(archives_of_other_writers_without_descriptor_and_zip64_are_read) {
  // One stored member "f" = "hi", as Info-ZIP lays it out.
  const std::string local(
      "PK\3\4\x0a\0\0\0\0\0\0\0\0\0\xac\x2a\x93\xd8\2\0\0\0\2\0\0\0\1\0\0\0f"
      "hi",
      33);
  const std::string central(
      "PK\1\2\x1e\3\x0a\0\0\0\0\0\0\0\0\0\xac\x2a\x93\xd8\2\0\0\0\2\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0"
      "\0"
      "\0\0\0\0f",
      47);
  const std::string end("PK\5\6\0\0\0\0\1\0\1\0\x2f\0\0\0\x21\0\0\0\0\0", 22);
  const auto members = read_all(local + central + end);
  BOOST_REQUIRE(members.size() == 1);
  BOOST_TEST((members[0].data == ByteRange{31, 2}));
  BOOST_TEST(members[0].crc32.value() == 0xd8932aacu);
}

BOOST_AUTO_TEST_CASE(names_and_sizes_that_fit_no_archive_are_refused) {
  Layout layout;
  BOOST_TEST(test::error_of([&] { layout.add(std::string(65536, 'n'), 1); }).has_value());
  BOOST_TEST(test::error_of([&] { layout.add("n", uint64_t{1} << 63); }).has_value());
  layout.add(std::string(65535, 'n'), 1);
  BOOST_TEST(layout.places()[0].data_offset_bytes % Layout::kAlignmentBytes == 0);
}

BOOST_AUTO_TEST_CASE(limits_bound_what_a_directory_may_ask_for) {
  const std::string archive = make_archive(kSmall).bytes;
  ckpt::Limits limits;
  limits.zip_entries_max = 3;
  BOOST_TEST(test::error_of([&] {
               ckpt::zip::read_directory(MemoryFile(archive), {0, archive.size()}, limits);
             }).has_value());
  limits = {};
  limits.zip_directory_bytes_max = 100;
  BOOST_TEST(test::error_of([&] {
               ckpt::zip::read_directory(MemoryFile(archive), {0, archive.size()}, limits);
             }).has_value());
}

namespace {

struct Damage {
  std::string what;
  std::function<void(std::string&, const Layout&)> apply;
  std::string problem;  // a part of it
  ErrorCode code = ErrorCode::Corrupt;
};

// Where the parts of an archive of kSmall lie.
size_t central(const Layout& layout, size_t member) {
  size_t at = layout.directory_offset_bytes();
  for (size_t i = 0; i < member; ++i) at += 46 + layout.places()[i].name.size();
  return at;
}
size_t local(const Layout& layout, size_t member) {
  return layout.places()[member].header_offset_bytes;
}
size_t end(const Layout& layout) { return layout.count_bytes() - 22; }

const std::vector<Damage> kDamages = {
    {"nothing left", [](auto& a, auto&) { a.clear(); }, "too short"},
    {"cut in half", [](auto& a, auto&) { a.resize(a.size() / 2); }, "truncated after"},
    {"last byte missing", [](auto& a, auto&) { a.pop_back(); }, "truncated after"},
    {"a byte behind the end", [](auto& a, auto&) { a += 'x'; }, "no zip end record"},
    {"first byte missing", [](auto& a, auto&) { a.erase(0, 1); }, "is not where"},
    {"comment", [](auto& a, auto& l) { a[end(l) + 20] = 1; }, "comment"},
    {"disk number", [](auto& a, auto& l) { a[end(l) + 4] = 1; }, "several disks"},
    {"member count", [](auto& a, auto& l) { a[end(l) + 8] = 7; }, "two different member counts"},
    {"end records disagree", [](auto& a, auto& l) { a[end(l) + 12] ^= 1; }, "disagree"},
    {"locator", [](auto& a, auto& l) { a[end(l) - 12] ^= 1; }, "is not where"},
    {"ZIP64 end record", [](auto& a, auto& l) { a[end(l) - 76] ^= 1; },
     "expected the ZIP64 end record"},
    {"ZIP64 directory offset", [](auto& a, auto& l) { a[end(l) - 76 + 48] ^= 1; }, "disagree"},
    {"directory entry", [](auto& a, auto& l) { a[central(l, 1)] ^= 1; },
     "expected a zip directory entry"},
    {"compressed", [](auto& a, auto& l) { a[central(l, 1) + 10] = 8; }, "compressed",
     ErrorCode::Unsupported},
    {"encrypted", [](auto& a, auto& l) { a[central(l, 1) + 8] |= 1; }, "encrypted",
     ErrorCode::Unsupported},
    {"sizes differ", [](auto& a, auto& l) { a[central(l, 1) + 20] ^= 1; }, "different sizes"},
    {"name in the directory", [](auto& a, auto& l) { a[central(l, 1) + 46] ^= 1; },
     "different names"},
    {"name in the header", [](auto& a, auto& l) { a[local(l, 1) + 30] ^= 1; }, "different names"},
    {"two of one name",
     [](auto& a, auto& l) { a[central(l, 1) + 46 + 7] = '1', a[local(l, 1) + 30 + 7] = '1'; },
     "two zip members"},
    {"header offset", [](auto& a, auto& l) { a[central(l, 1) + 42] ^= 1; }, "no local header"},
    {"header offset far away", [](auto& a, auto& l) { a[central(l, 1) + 45] = 0x70; },
     "ends early"},
    {"two at one place",
     [](auto& a, auto& l) { a.replace(central(l, 1) + 42, 4, a.substr(central(l, 0) + 42, 4)); },
     ""},
    {"local signature", [](auto& a, auto& l) { a[local(l, 1)] ^= 1; }, "no local header"},
    {"local method", [](auto& a, auto& l) { a[local(l, 1) + 8] = 8; }, "different flags"},
    {"local flags", [](auto& a, auto& l) { a[local(l, 1) + 6] ^= 2; }, "different flags"},
    {"local checksum", [](auto& a, auto& l) { a[local(l, 1) + 14] ^= 1; }, "different checksums"},
    {"local size", [](auto& a, auto& l) { a[local(l, 1) + 18] ^= 1; }, "different sizes"},
    {"padding too long", [](auto& a, auto& l) { a[local(l, 1) + 29] = 0x20; },
     "extends beyond the end of the archive"},
    {"checksum in the directory", [](auto& a, auto& l) { a[central(l, 1) + 16] ^= 1; },
     "different checksums"},
    {"descriptor's checksum",
     [](auto& a, auto& l) { a[l.places()[1].data_offset_bytes + 104] ^= 1; },
     "different checksums"},
    {"descriptor's size", [](auto& a, auto& l) { a[l.places()[1].data_offset_bytes + 108] ^= 1; },
     "different sizes"},
    {"both sizes too large",
     [](auto& a, auto& l) { a[central(l, 1) + 21] = 1, a[central(l, 1) + 25] = 1; }, "overlaps"},
};

}  // namespace

BOOST_AUTO_TEST_CASE(what_two_readers_could_read_in_two_ways_is_refused) {
  for (const Damage& damage : kDamages) {
    Archive archive = make_archive(kSmall);
    damage.apply(archive.bytes, archive.layout);
    const auto error = test::error_of([&] { read_all(archive.bytes); });
    BOOST_TEST_REQUIRE(error.has_value(), damage.what);
    BOOST_TEST((error->code() == damage.code), damage.what);
    BOOST_TEST(test::contains(error->problem(), damage.problem),
               damage.what << ": " << error->what());
    BOOST_TEST(error->where().file == "memory");
    BOOST_TEST(error->where().offset_bytes.has_value(), damage.what);
  }
}

BOOST_AUTO_TEST_CASE(any_flipped_byte_gives_an_error_or_members_inside_the_archive) {
  const Archive archive = make_archive(kSmall);
  std::mt19937 random(4);
  int refused = 0;
  for (size_t at = 0; at < archive.bytes.size(); ++at) {
    std::string damaged = archive.bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    try {
      for (const Member& member : read_all(damaged)) {
        BOOST_REQUIRE(member.data.end_bytes() <= damaged.size());
      }
    } catch (const ckpt::Error&) {
      ++refused;
    }
  }
  BOOST_TEST(refused > 400);
}

BOOST_AUTO_TEST_CASE(any_truncation_is_refused) {
  const std::string archive = make_archive(kSmall).bytes;
  for (size_t size = 0; size < archive.size(); ++size) {
    BOOST_REQUIRE(test::error_of([&] { read_all(archive.substr(0, size)); }).has_value());
  }
}

BOOST_AUTO_TEST_SUITE_END()
