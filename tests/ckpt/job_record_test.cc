#include "staging/job_record.h"

#include <boost/test/unit_test.hpp>

#include "staging/store_staging.h"
#include "support/temporary_folder.h"

using ckpt::FinishedPiece;
using ckpt::JobIdentity;
using test::TemporaryFolder;
using Pieces = std::vector<FinishedPiece>;

namespace {

const JobIdentity kJob = {"1.2.3", "aa", "bb", 8};

FinishedPiece numbered(uint32_t number) {
  return {"file" + std::to_string(number), {number, 10 * number}, number, {number, number + 1}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(job_record)

BOOST_AUTO_TEST_CASE(an_identity_is_read_as_it_was_written) {
  const auto read = JobIdentity::parse(kJob.text());
  BOOST_REQUIRE(read);
  BOOST_TEST(read->text() == kJob.text());
  BOOST_TEST(read->difference(kJob).empty());
  for (const std::string text :
       {"", "shardwise 1\n", "shardwise 1\nplan a\nsource b\nprocesses x\n",
        "shardwise 1\nplan a\nsource b\nprocesses 1"}) {
    BOOST_TEST(!JobIdentity::parse(text), text);
  }
}

BOOST_AUTO_TEST_CASE(every_difference_is_named) {
  const std::pair<JobIdentity, std::string> others[] = {
      {{"1.2.4", "aa", "bb", 8}, "by version 1.2.4 of this program, not 1.2.3"},
      {{"1.2.3", "ab", "bb", 8}, "with another plan"},
      {{"1.2.3", "aa", "bc", 8}, "from another source, or from one that has changed since"},
      {{"1.2.3", "aa", "bb", 7}, "by 7 processes, not 8"}};
  for (const auto& [other, text] : others) BOOST_TEST(other.difference(kJob) == text);
}

BOOST_AUTO_TEST_CASE(a_record_holds_what_was_added_and_whether_it_is_complete) {
  const TemporaryFolder folder;
  const Pieces pieces = {{"iter_0000003/__0_0.distcp", {0, 12345678901}, 0xdeadbeef},
                         {"line\nend \\ x5c \\x", {65536, 0}, 0, {7}},
                         {"", {1, 7}, 1, {0, 0xffffffff, 3}}};
  BOOST_TEST(!ckpt::read_part_record(folder / "part-0"));
  ckpt::PartRecordWriter writer(folder.path(), "part-0", kJob, {pieces[0]});
  writer.add(pieces[1]);
  writer.add(pieces[2]);
  const auto open = ckpt::read_part_record(folder / "part-0");
  BOOST_REQUIRE(open);
  BOOST_TEST(open->job == kJob.text());
  BOOST_TEST((open->pieces == pieces));
  BOOST_TEST(!open->is_complete);
  writer.complete();
  BOOST_TEST(ckpt::read_part_record(folder / "part-0")->is_complete);
}

BOOST_AUTO_TEST_CASE(a_record_that_ends_anywhere_is_read_up_to_there) {
  const TemporaryFolder folder;
  {
    ckpt::PartRecordWriter writer(folder.path(), "whole", kJob, {});
    for (uint32_t i = 0; i < 3; ++i) writer.add(numbered(i));
    writer.complete();
  }
  const std::string text = test::read_file(folder / "whole");
  for (size_t length = 0; length < text.size(); ++length) {
    test::write_file(folder / "cut", text.substr(0, length));
    const auto record = ckpt::read_part_record(folder / "cut");
    if (length < kJob.text().size()) {
      BOOST_TEST(!record.has_value(), length);
      continue;
    }
    BOOST_REQUIRE(record);
    BOOST_TEST(!record->is_complete, length);
    for (uint32_t i = 0; i < record->pieces.size(); ++i) {
      BOOST_TEST((record->pieces[i] == numbered(i)));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_record_of_a_staging_folder_is_read_as_it_was_written) {
  const std::vector<std::string> files = {"", "a/b", "line\nend \\ \"quoted\"", "\nfiles ["};
  for (const std::string& job :
       {kJob.text(), std::string("a job"), std::string(), std::string("x\n")}) {
    for (const auto& listed : {files, std::vector<std::string>()}) {
      const auto read = ckpt::StagingRecord::parse(ckpt::StagingRecord{job, listed}.text());
      BOOST_REQUIRE(read);
      BOOST_TEST(read->job == job);
      BOOST_TEST((read->files == listed));
    }
  }
  BOOST_TEST(ckpt::StagingRecord::parse(kJob.text())->job == kJob.text());  // of older versions
  for (const std::string text : {"", "mine", "a job\nfiles []\n"}) {
    BOOST_TEST(!ckpt::StagingRecord::parse(text), text);
  }
}

BOOST_AUTO_TEST_CASE(the_record_of_a_part_in_a_store_is_read_as_it_was_written) {
  ckpt::StorePart part{kJob.text(), {}};
  part.files.push_back({{"a/b \"c\"", {0, 9}, 7}, {"x/a/b \"c\"", "id~1", true}, {}});
  part.files.back().parts = {{1, {8, "\"etag\"", "sum="}}, {2, {1, "e", ""}}};
  part.files.push_back({{"empty", {0, 0}, 0}, {"x/empty", "2"}, {}});
  const std::string text = part.text();
  const auto read = ckpt::StorePart::parse(text);
  BOOST_REQUIRE(read);
  BOOST_TEST(read->job == part.job);
  BOOST_TEST(read->text() == text);
  BOOST_TEST((read->files[0].piece == part.files[0].piece));
  BOOST_TEST(read->files[0].upload.has_checksums);
  for (size_t length = 0; length + 1 < text.size(); ++length) {  // but for the end of the line
    BOOST_TEST(!ckpt::StorePart::parse(text.substr(0, length)), length);
  }
  BOOST_TEST(!ckpt::StorePart::parse("shardwise part\n[\"job\",[[1,2]]]\n"));
}

BOOST_AUTO_TEST_SUITE_END()
