#include "io/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include <boost/test/unit_test.hpp>

#include <ckpt/named_file.h>

#include "io/directory.h"
#include "support/errors.h"
#include "support/memory_payloads.h"
#include "support/temporary_folder.h"

namespace fs = std::filesystem;

using ckpt::Directory;
using ckpt::ErrorCode;
using ckpt::File;
using ckpt::Links;
using test::error_of;
using test::TemporaryFolder;

BOOST_AUTO_TEST_SUITE(file)

BOOST_AUTO_TEST_CASE(what_is_written_at_a_place_is_read_there) {
  const TemporaryFolder temporary;
  {
    const File file = File::create(temporary / "f", 10);
    file.write_at(5, test::bytes_of("56789"));
    file.write_at(0, test::bytes_of("01234"));
  }
  const File file = File::open(temporary / "f", "shown");
  BOOST_TEST(file.size_bytes() == 10);
  BOOST_TEST(file.file_name() == "shown");
  std::string content(4, '\0');
  file.read_at(3, std::as_writable_bytes(std::span(content)));
  BOOST_TEST(content == "3456");
}

BOOST_AUTO_TEST_CASE(reading_behind_the_end_is_corrupt_with_file_and_offset) {
  const TemporaryFolder temporary;
  test::write_file(temporary / "f", "abc");
  const File file = File::open(temporary / "f", "f");
  std::string content(2, '\0');
  const auto error = error_of([&] { file.read_at(2, std::as_writable_bytes(std::span(content))); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
  BOOST_TEST(error->what() == "f @2: 2 bytes expected here, but the file ends at 3");
}

BOOST_AUTO_TEST_CASE(an_existing_file_is_never_overwritten) {
  const TemporaryFolder temporary;
  test::write_file(temporary / "f", "abc");
  const auto error = error_of([&] { File::create(temporary / "f", 1); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::AlreadyExists));
  BOOST_TEST(test::read_file(temporary / "f") == "abc");
}

BOOST_AUTO_TEST_CASE(only_regular_files_are_opened) {
  const TemporaryFolder temporary;
  const auto absent = error_of([&] { File::open(temporary / "no"); });
  BOOST_REQUIRE(absent);
  BOOST_TEST((absent->code() == ErrorCode::NotFound));
  BOOST_TEST(error_of([&] { File::open(temporary.path()); }).has_value());
  BOOST_REQUIRE(mkfifo((temporary / "pipe").c_str(), 0600) == 0);
  BOOST_TEST(error_of([&] { File::open(temporary / "pipe"); }).has_value());  // does not wait
  BOOST_TEST(error_of([&] { File::open(std::filesystem::path("/dev/zero")); }).has_value());
}

BOOST_AUTO_TEST_CASE(a_folder_opens_files_below_it_and_nothing_else) {
  const TemporaryFolder temporary;
  test::write_file(temporary / "outside", "secret");
  test::write_file(temporary / "in/deep/f", "content");
  fs::create_symlink("../outside", temporary / "in/out");
  fs::create_symlink("/etc/passwd", temporary / "in/absolute");
  fs::create_directory_symlink("..", temporary / "in/up");
  const Directory folder = Directory::open(temporary / "in");
  BOOST_TEST(folder.open_file("deep/f").size_bytes() == 7);
  BOOST_TEST(folder.open_file("deep/f").file_name() == "deep/f");
  BOOST_TEST(!error_of([&] { folder.check_inside("deep/f"); }));
  BOOST_TEST(!!error_of([&] { folder.check_inside("deep/g"); }));
  for (const std::string& name :
       {std::string("out"), std::string("absolute"), std::string("up/outside"),
        std::string("../outside"), (temporary / "outside").string(), std::string(""),
        std::string("deep/../../outside")}) {
    const auto error = error_of([&] { folder.open_file(name); });
    BOOST_TEST_REQUIRE(error.has_value(), name);
    BOOST_TEST((error->code() == ErrorCode::Corrupt), name << ": " << error->what());
    BOOST_TEST(!!error_of([&] { folder.check_inside(name); }), name);
  }
  BOOST_TEST(folder.open_file("out", "shown", Links::MayLeadOut).size_bytes() == 6);
  BOOST_TEST(folder.open_file("up/outside", {}, Links::MayLeadOut).size_bytes() == 6);
  const auto absent = error_of([&] { folder.open_file("deep/g"); });
  BOOST_REQUIRE(absent);
  BOOST_TEST((absent->code() == ErrorCode::NotFound));
}

BOOST_AUTO_TEST_CASE(a_named_file_is_read_whole_and_nothing_else_is_waited_for) {
  const TemporaryFolder temporary;
  test::write_file(temporary / "f", "0123456789");
  BOOST_TEST(ckpt::read_named_file(temporary / "f", 10) == "0123456789");
  BOOST_REQUIRE(mkfifo((temporary / "pipe").c_str(), 0600) == 0);
  const struct {
    fs::path path;
    ErrorCode code;
    std::string_view problem;
  } rows[] = {
      {temporary / "f", ErrorCode::Unsupported, "is longer than 9 bytes"},
      {temporary / "no", ErrorCode::NotFound, "cannot open"},
      {temporary / "pipe", ErrorCode::IoFailure, "is a pipe that nobody writes to"},
      {temporary.path(), ErrorCode::IoFailure, "is not a regular file"},
      {"/dev/zero", ErrorCode::IoFailure, "is not a regular file"},
  };
  for (const auto& row : rows) {
    const auto error = error_of([&] { ckpt::read_named_file(row.path, 9); });
    BOOST_TEST_REQUIRE(error.has_value(), row.path);
    BOOST_TEST((error->code() == row.code), error->what());
    BOOST_TEST(error->problem().starts_with(row.problem), error->what());
  }
}

BOOST_AUTO_TEST_CASE(a_pipe_is_read_to_its_end_where_somebody_writes) {
  for (const std::string text : {"", "a record"}) {
    int ends[2];
    BOOST_REQUIRE(pipe(ends) == 0);
    ssize_t written_bytes = -1;
    std::jthread writer([&] {  // Boost.Test is not to be called from two threads.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      written_bytes = write(ends[1], text.data(), text.size());
      close(ends[1]);
    });
    const std::string read = ckpt::read_named_file("/dev/fd/" + std::to_string(ends[0]), 100);
    writer.join();
    BOOST_TEST(read == text);
    BOOST_TEST(written_bytes == ssize(text));
    close(ends[0]);
  }
}

BOOST_AUTO_TEST_CASE(a_folder_lists_its_entries_sorted_and_again) {
  const TemporaryFolder temporary;
  for (const std::string name : {"b", "a", ".metadata", "B"})
    test::write_file(temporary / name, "");
  const Directory folder = Directory::open(temporary.path());
  const std::vector<std::string> expected = {".metadata", "B", "a", "b"};
  BOOST_TEST((folder.list() == expected));
  BOOST_TEST((folder.list() == expected));
}

BOOST_AUTO_TEST_CASE(paths_that_leave_a_folder_are_told_from_those_that_stay) {
  for (const std::string safe : {"a", "a/b", ".metadata", "..a", "a..", "a b/c\n"}) {
    BOOST_TEST(ckpt::is_safe_relative(safe), safe);
  }
  for (const std::string& unsafe :
       {std::string(""), std::string("/a"), std::string(".."), std::string("a/../b"),
        std::string("a/.."), std::string("."), std::string("a/"), std::string("./a"),
        std::string("a\0b", 3)}) {
    BOOST_TEST(!ckpt::is_safe_relative(unsafe), unsafe);
  }
}

BOOST_AUTO_TEST_SUITE_END()
