// Metadata files are opened and read once, whoever asks; other files as often as they are opened.
#include <boost/test/unit_test.hpp>
#include <map>
#include <thread>

#include <ckpt/error.h>

#include "format/location/location.h"
#include "support/convention.h"
#include "support/memory_folder.h"

namespace {

// A file of which is counted how often it is passed over once.
class CountedFile final : public ckpt::OpenedFile {
 public:
  CountedFile(std::unique_ptr<ckpt::OpenedFile> base, int& passed)
      : base_(std::move(base)), passed_(passed) {}
  uint64_t size_bytes() const override { return base_->size_bytes(); }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    base_->read_at(offset_bytes, out);
  }
  void read_once(uint64_t offset_bytes, std::span<std::byte> out) const override {
    ++passed_;
    base_->read_once(offset_bytes, out);
  }
  const std::string& file_name() const override { return base_->file_name(); }
  const ckpt::FileState& state() const override { return base_->state(); }

 private:
  std::unique_ptr<ckpt::OpenedFile> base_;
  int& passed_;
};

class CountedFolder final : public ckpt::Folder {
 public:
  explicit CountedFolder(test::MemoryFolder base) : base_(std::move(base)) {}
  std::vector<std::string> list(const std::filesystem::path& folder) const override {
    return base_.list(folder);
  }
  Entry stat(const std::filesystem::path& path) const override { return base_.stat(path); }
  std::unique_ptr<ckpt::OpenedFile> open(const std::filesystem::path& folder,
                                         const Name& name) const override {
    ++opened[name.path];
    return std::make_unique<CountedFile>(base_.open(folder, name), passed);
  }
  void check_inside(const std::filesystem::path&, const std::string&) const override {}

  mutable std::map<std::string, int> opened;
  mutable int passed = 0;

 private:
  test::MemoryFolder base_;
};

struct Kept {
  Kept() {
    test::MemoryFolder files;
    for (const char* name : {".metadata", "common.pt", "__0_0.distcp"}) files.put(name, name);
    counted = std::make_shared<CountedFolder>(std::move(files));
    folder = ckpt::keep_metadata(counted, &test::kConvention);
  }
  std::string read(const std::string& name) const {
    const auto file = folder->open("", {name, "shown " + name});
    BOOST_TEST(file->file_name() == "shown " + name);
    std::string text(file->size_bytes(), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(text)));
    return text;
  }

  std::shared_ptr<CountedFolder> counted;
  std::shared_ptr<const ckpt::Folder> folder;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(kept_metadata)

BOOST_AUTO_TEST_CASE(metadata_is_opened_once_and_data_each_time) {
  const Kept kept;
  for (const char* name :
       {".metadata", "common.pt", "__0_0.distcp", ".metadata", "common.pt", "__0_0.distcp"}) {
    BOOST_TEST(kept.read(name) == name);
  }
  BOOST_TEST(kept.counted->opened[".metadata"] == 1);
  BOOST_TEST(kept.counted->opened["common.pt"] == 1);
  BOOST_TEST(kept.counted->opened["__0_0.distcp"] == 2);
}

BOOST_AUTO_TEST_CASE(without_a_convention_common_pt_is_a_file_like_others) {
  const Kept kept;
  const auto folder = ckpt::keep_metadata(kept.counted, nullptr);
  for (int i = 0; i < 2; ++i) folder->open("", {"common.pt"});
  BOOST_TEST(kept.counted->opened["common.pt"] == 2);
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_opened_is_tried_again) {
  const Kept kept;
  for (int i = 0; i < 2; ++i) {
    BOOST_CHECK_THROW(kept.folder->open("", {"metadata.json"}), ckpt::Error);
  }
  BOOST_TEST(kept.counted->opened["metadata.json"] == 2);
}

BOOST_AUTO_TEST_CASE(what_lies_behind_the_end_is_refused_as_the_file_does) {
  const Kept kept;
  const auto file = kept.folder->open("", {"common.pt"});
  std::byte bytes[4];
  BOOST_CHECK_THROW(file->read_at(file->size_bytes() - 1, bytes), ckpt::Error);
  BOOST_CHECK_THROW(file->read_at(UINT64_MAX, bytes), ckpt::Error);
}

// What is too large to stay in memory leaves the page cache, as files that are not kept do.
BOOST_AUTO_TEST_CASE(a_large_file_is_passed_over_once_and_a_small_one_stays) {
  test::MemoryFolder files;
  files.put(".metadata", std::string((4 << 20) + 1, 'm'));
  files.put("common.pt", "small");
  const auto counted = std::make_shared<CountedFolder>(std::move(files));
  const auto folder = ckpt::keep_metadata(counted, &test::kConvention);
  std::byte byte;
  folder->open("", {"common.pt"})->read_once(0, std::span(&byte, 1));
  BOOST_TEST(counted->passed == 0);
  folder->open("", {".metadata"})->read_once(0, std::span(&byte, 1));
  BOOST_TEST(counted->passed == 1);
}

BOOST_AUTO_TEST_CASE(threads_read_the_same_bytes) {
  const Kept kept;
  const auto file = kept.folder->open("", {"common.pt"});
  std::vector<std::string> read(4, std::string(file->size_bytes(), '\0'));
  {
    std::vector<std::jthread> threads;
    for (std::string& text : read) {
      threads.emplace_back([&] { file->read_at(0, std::as_writable_bytes(std::span(text))); });
    }
  }
  for (const std::string& text : read) BOOST_TEST(text == "common.pt");
}

BOOST_AUTO_TEST_SUITE_END()
