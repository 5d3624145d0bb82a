// What a new format takes: a pair of functions like these, and a row for each in formats.cc and
// make_target.cc. Opening, listing, hashing, verifying, comparing and converting from and to all
// others are there already.
#include <boost/test/unit_test.hpp>

#include <bit>
#include <fstream>

#include <ckpt/convert.h>
#include <ckpt/diff.h>
#include <ckpt/error.h>
#include <ckpt/verify.h>

#include "format/format.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/temporary_folder.h"
#include "targets/plain_target.h"

namespace {

// --- the format: an array of float32 in one file, much like NumPy's .npy ---
//
//   "\x93ARRAY" 1 0, u16 length of the header, little-endian
//   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, spaces, '\n'
//   the elements, row-major

using ckpt::Error;
using ckpt::ErrorCode;

constexpr auto kArray = static_cast<ckpt::Format>(3);  // a value of ckpt::Format
constexpr std::string_view kMagic(
    "\x93"
    "ARRAY\x01\x00",
    8);
constexpr size_t kHeadBytes = kMagic.size() + 2;
constexpr std::string_view kBeforeShape = "{'descr': '<f4', 'fortran_order': False, 'shape': (";

bool is_array_file(const ckpt::FileHead& file, ckpt::Location&) {
  return file.bytes.starts_with(kMagic);
}

ckpt::Extents shape_in(std::string_view header, const std::string& file) {
  if (!header.starts_with(kBeforeShape)) {
    throw Error(ErrorCode::Unsupported, {.file = file, .key = {}},
                "is no array of float32 by rows");
  }
  ckpt::Extents shape;
  std::istringstream text{std::string(header.substr(kBeforeShape.size()))};
  for (uint64_t size = 0; text >> size; text.ignore(2)) shape.push_back(size);
  return shape;
}

ckpt::Contents read_array_file(const ckpt::Location& location, const ckpt::Limits& limits) {
  const std::string& name = location.only_file.value();
  const auto file = ckpt::open_source(location, name, name, limits);
  std::vector<std::byte> head(kHeadBytes);
  file->read_at(0, head);
  const size_t header_bytes = static_cast<size_t>(head[8]) | static_cast<size_t>(head[9]) << 8;
  std::string header(header_bytes, '\0');
  file->read_at(kHeadBytes, std::as_writable_bytes(std::span(header)));
  ckpt::TensorEntry array{{}, "array", ckpt::DType::Float32, shape_in(header, name), {}};
  const uint64_t begin_bytes = kHeadBytes + header_bytes, count_bytes = ckpt::count_bytes(array);
  if (begin_bytes + count_bytes != file->size_bytes()) {
    throw Error(ErrorCode::Corrupt, {.file = name, .key = {}}, "does not end with its elements");
  }
  array.chunks.push_back({ckpt::whole(array.shape), {.bytes = {begin_bytes, count_bytes}}});
  ckpt::Contents contents;
  contents.catalog.files.push_back({name, file->size_bytes()});
  contents.catalog.tensors.push_back(std::move(array));
  return contents;
}

ckpt::Target make_array_file(ckpt::PlainState state, const ckpt::TargetSpec&) {
  const ckpt::PlainEntry& entry = state.entries.front();
  const bool is_one = state.entries.size() == 1 && entry.tensor;
  if (!is_one || entry.tensor->dtype != ckpt::DType::Float32) {
    throw Error(ErrorCode::Unsupported, {}, "an array file holds one tensor of float32");
  }
  const ckpt::Extents& shape = entry.tensor->shape;
  std::string header(kBeforeShape);
  for (const uint64_t size : shape) header += std::to_string(size) + ", ";
  header += "), }\n";
  std::string bytes(kMagic);
  bytes += {static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
  ckpt::TargetArchive archive;
  archive.content = ckpt::RawHeader{bytes + header};
  archive.records.push_back(
      {ckpt::count_bytes(*entry.tensor), ckpt::TensorSource{entry.tensor, ckpt::whole(shape)}});
  return {kArray, {{"", {std::move(archive)}, ""}}, std::move(state.not_carried), 0, {}};
}

// Its two rows.
struct WithArrays {
  WithArrays() {
    ckpt::formats().push_back({kArray, "array", ckpt::KeyStyle::Flat, nullptr, is_array_file,
                               read_array_file, "save it as float32"});
    ckpt::target_rows().push_back({kArray, "array", make_array_file,
                                   [](const ckpt::PlainEntry& entry) { return !entry.tensor; }});
  }
  ~WithArrays() {
    ckpt::formats().pop_back();
    ckpt::target_rows().pop_back();
  }
};

// --- what it can do ---

struct Sample : WithArrays {
  test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "sample.array";

  Sample() {
    const std::vector<float> elements = {0.5F, -1, 2, 3, 1e30F, -0.0F};
    const std::string header = std::string(kBeforeShape) + "2, 3), }         \n";
    std::ofstream out(file, std::ios::binary);
    out << kMagic << static_cast<char>(header.size()) << '\0' << header;
    out.write(reinterpret_cast<const char*>(elements.data()), 6 * sizeof(float));
  }

  std::filesystem::path converted(const std::filesystem::path& source, ckpt::Format format) const {
    const char* const suffix = format == ckpt::Format::TorchDist ? "" : ".out";
    const std::filesystem::path path =
        folder / (source.stem().string() + "_" + std::string(name(format)) + suffix);
    ckpt::ConvertOptions options;
    options.format = format;
    ckpt::convert(source, path, options);
    return path;
  }
};

std::vector<ckpt::TensorDifference> differences(const std::filesystem::path& a,
                                                const std::filesystem::path& b) {
  const auto first = ckpt::Checkpoint::open(a), second = ckpt::Checkpoint::open(b);
  const ckpt::Inventory one = plain_inventory(first), other = plain_inventory(second);
  return ckpt::diff({one, first}, {other, second}).tensors;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(new_format, Sample)

BOOST_AUTO_TEST_CASE(it_is_told_by_its_bytes_read_and_verified) {
  const auto checkpoint = ckpt::Checkpoint::open(file);
  BOOST_TEST(name(checkpoint.catalog().format) == "array");
  BOOST_TEST(checkpoint.read_as<float>("array", ckpt::whole({2, 3}))[1] == -1);
  for (const ckpt::Finding& finding : ckpt::verify(checkpoint).findings) {
    BOOST_TEST((finding.severity != ckpt::Severity::Damage), finding.problem);
  }
}

BOOST_AUTO_TEST_CASE(it_is_converted_to_every_format_and_back) {
  for (const ckpt::Format format : ckpt::target_formats()) {
    const auto there = converted(file, format), back = converted(there, kArray);
    BOOST_TEST(differences(file, there).empty(), name(format));
    BOOST_TEST(differences(file, back).empty(), name(format));
  }
}

BOOST_AUTO_TEST_CASE(its_errors_are_those_of_all_formats) {
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const auto cut = test::error_of([&] { ckpt::Checkpoint::open(file); });
  BOOST_REQUIRE(cut.has_value());
  BOOST_TEST(cut->where().file == "sample.array");
  const auto refused =
      test::error_of([&] { converted(test::golden("torch_save_zip/zip.pt"), kArray); });
  BOOST_REQUIRE(refused.has_value());
  BOOST_TEST((refused->code() == ErrorCode::Unsupported));
}

BOOST_AUTO_TEST_SUITE_END()
