#include <ckpt/archive_builder.h>
#include <ckpt/plan.h>

#include <boost/test/unit_test.hpp>

#include "support/errors.h"
#include "support/random_tensors.h"

using ckpt::Box;
using ckpt::ErrorCode;
using ckpt::Extents;
using ckpt::Plan;
using ckpt::Target;

namespace {

ckpt::Chunk chunk_of(Box box) { return {std::move(box), {}, 0}; }

std::shared_ptr<ckpt::TensorEntry> tensor_of(Extents shape, std::vector<Box> boxes) {
  auto tensor = std::make_shared<ckpt::TensorEntry>();
  tensor->key = "a.weight";
  tensor->shape = std::move(shape);
  for (Box& box : boxes) tensor->chunks.push_back(chunk_of(std::move(box)));
  return tensor;
}

ckpt::TargetArchive archive_of(std::shared_ptr<const ckpt::TensorEntry> tensor, const Box& box) {
  const uint64_t bytes = ckpt::element_count(box.sizes) * bytes_per_element(tensor->dtype);
  ckpt::TargetArchive archive;
  archive.name = "archive";
  archive.content = ckpt::BareTensor{tensor->dtype, box.sizes};
  archive.records.push_back({bytes, ckpt::TensorSource{std::move(tensor), box}});
  return archive;
}

Target target_of(std::vector<ckpt::TargetArchive> archives) {
  Target target;
  target.files.push_back({"f", std::move(archives), {}});
  return target;
}

std::optional<ckpt::Error> plan_error(const Target& target) {
  return test::error_of([&] { ckpt::make_plan(target); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan)

BOOST_AUTO_TEST_CASE(a_record_is_copied_from_the_chunks_that_it_meets) {
  // Two layers of 4 rows, stored in halves; wanted: rows 1 to 2 of the second layer.
  const auto tensor = tensor_of(
      {2, 4, 3}, {{{0, 0, 0}, {1, 4, 3}}, {{1, 2, 0}, {1, 2, 3}}, {{1, 0, 0}, {1, 2, 3}}});
  const Plan plan = ckpt::make_plan(target_of({archive_of(tensor, {{1, 1, 0}, {1, 2, 3}})}));
  BOOST_REQUIRE(plan.records.size() == 1);
  const auto& copies = plan.records[0].copies;
  BOOST_REQUIRE(copies.size() == 2);
  BOOST_TEST(copies[0].chunk == 1);
  BOOST_TEST((copies[0].overlap == Box{{1, 2, 0}, {1, 1, 3}}));
  BOOST_TEST(copies[1].chunk == 2);
  BOOST_TEST((copies[1].overlap == Box{{1, 1, 0}, {1, 1, 3}}));
  BOOST_TEST(plan.payload_bytes == 24);
}

Target target_of_segments(std::vector<ckpt::Segment> segments, uint64_t record_bytes) {
  ckpt::TargetArchive archive;
  archive.name = "archive";
  archive.content = ckpt::BareTensor{ckpt::DType::Float32, {record_bytes / 4}};
  archive.records.push_back({record_bytes, std::move(segments)});
  return target_of({std::move(archive)});
}

BOOST_AUTO_TEST_CASE(a_record_of_segments_is_copied_from_the_chunks_that_each_of_them_meets) {
  const auto rows = tensor_of({4, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}});
  const auto flat = tensor_of({9}, {{{0}, {9}}});
  const Plan plan = ckpt::make_plan(target_of_segments(
      {{0, {flat, {{2}, {5}}}, 1, 2}, {16, {rows, {{1, 1}, {3, 2}}}, 1, 3}}, 40));
  BOOST_REQUIRE(plan.records.size() == 1);
  const auto& copies = plan.records[0].copies;
  BOOST_REQUIRE(copies.size() == 3);
  BOOST_TEST(copies[0].segment == 0u);
  BOOST_TEST((copies[0].overlap == Box{{3}, {2}}));
  BOOST_TEST(copies[1].segment == 1u);
  BOOST_TEST(copies[1].chunk == 0u);
  BOOST_TEST((copies[1].overlap == Box{{1, 2}, {1, 1}}));
  BOOST_TEST(copies[2].chunk == 1u);
  BOOST_TEST((copies[2].overlap == Box{{2, 1}, {1, 2}}));
  BOOST_TEST(plan.payload_bytes == 40u);
}

BOOST_AUTO_TEST_CASE(segments_that_do_not_fit_are_refused) {
  const auto tensor = tensor_of({4, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}});
  const auto torn = tensor_of({4, 3}, {{{0, 0}, {2, 3}}});
  const Box all = {{0, 0}, {4, 3}};
  const struct {
    std::string what;
    std::vector<ckpt::Segment> segments;
    ErrorCode code;
  } rows[] = {
      {"overlap",
       {{0, {tensor, all}, 0, 4}, {12, {tensor, all}, 0, 1}},
       ErrorCode::InvalidArgument},
      {"order", {{16, {tensor, all}, 0, 1}, {0, {tensor, all}, 0, 1}}, ErrorCode::InvalidArgument},
      {"the record's end", {{24, {tensor, all}, 0, 3}}, ErrorCode::InvalidArgument},
      {"far behind", {{UINT64_MAX - 3, {tensor, all}, 0, 1}}, ErrorCode::InvalidArgument},
      {"the box's end", {{0, {tensor, all}, 11, 2}}, ErrorCode::InvalidArgument},
      {"a wrapped end", {{0, {tensor, all}, UINT64_MAX, 2}}, ErrorCode::InvalidArgument},
      {"a box outside", {{0, {tensor, {{1, 0}, {4, 3}}}, 0, 1}}, ErrorCode::InvalidArgument},
      {"no chunk", {{0, {torn, all}, 5, 2}}, ErrorCode::Corrupt},
  };
  for (const auto& row : rows) {
    const auto error = plan_error(target_of_segments(row.segments, 32));
    BOOST_REQUIRE_MESSAGE(error, row.what);
    BOOST_TEST((error->code() == row.code), row.what);
    BOOST_TEST(error->where().key == "a.weight", row.what);
  }
  // Elements that no chunk has and none is asked for do not matter.
  BOOST_TEST(!plan_error(target_of_segments({{0, {torn, all}, 4, 2}}, 32)).has_value());
}

BOOST_AUTO_TEST_CASE(offsets_are_those_of_the_archives_back_to_back) {
  const auto tensor = tensor_of({5}, {{{0}, {5}}});
  Target target = target_of({archive_of(tensor, {{0}, {5}}), archive_of(tensor, {{1}, {3}})});
  target.files.push_back({"text", {}, "hello"});
  const Plan plan = ckpt::make_plan(target);
  const auto& archives = target.files[0].archives;
  const uint64_t first_bytes = ckpt::archive_layout(archives[0]).count_bytes;
  BOOST_REQUIRE(plan.records.size() == 2);
  BOOST_TEST(plan.records[0].offset_bytes ==
             ckpt::archive_layout(archives[0]).records[0].offset_bytes);
  BOOST_TEST(plan.records[1].offset_bytes ==
             first_bytes + ckpt::archive_layout(archives[1]).records[0].offset_bytes);
  BOOST_TEST(plan.records[1].archive == 1);
  BOOST_REQUIRE(plan.files.size() == 2);
  BOOST_TEST(plan.files[0].count_bytes ==
             first_bytes + ckpt::archive_layout(archives[1]).count_bytes);
  BOOST_TEST(plan.files[1].path == "text");
  BOOST_TEST(plan.files[1].count_bytes == 5);
  BOOST_TEST(plan.total_bytes == plan.files[0].count_bytes + 5);
}

BOOST_AUTO_TEST_CASE(every_element_of_a_random_record_is_copied_exactly_once) {
  test::Random random(5);
  for (int round = 0; round < 300; ++round) {
    const Extents shape = test::random_shape(random, 4, 6);
    const auto tensor = tensor_of(shape, test::random_grid(random, shape));
    const Box box = test::random_box(random, shape);
    const Plan plan = ckpt::make_plan(target_of({archive_of(tensor, box)}));
    uint64_t elements = 0;
    for (const ckpt::CopyOp& copy : plan.records[0].copies) {
      BOOST_REQUIRE((ckpt::intersect(copy.overlap, box) == copy.overlap));
      BOOST_REQUIRE(
          (ckpt::intersect(copy.overlap, tensor->chunks[copy.chunk].box) == copy.overlap));
      elements += ckpt::element_count(copy.overlap.sizes);
    }
    BOOST_REQUIRE(elements == ckpt::element_count(box.sizes));
  }
}

BOOST_AUTO_TEST_CASE(an_element_in_no_chunk_is_refused_with_the_key) {
  const auto tensor = tensor_of({4, 4}, {{{0, 0}, {4, 3}}, {{0, 3}, {3, 1}}});
  const auto error = plan_error(target_of({archive_of(tensor, ckpt::whole({4, 4}))}));
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
  BOOST_TEST(error->what() == "'a.weight': 1 of 16 elements are in no chunk of the checkpoint");
  // What is covered can be had.
  BOOST_TEST(!plan_error(target_of({archive_of(tensor, {{0, 0}, {3, 4}})})).has_value());
}

BOOST_AUTO_TEST_CASE(chunks_that_overlap_are_refused) {
  const auto tensor = tensor_of({4}, {{{0}, {3}}, {{2}, {2}}});
  const auto error = plan_error(target_of({archive_of(tensor, ckpt::whole({4}))}));
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
}

BOOST_AUTO_TEST_CASE(requests_that_make_no_sense_are_refused) {
  const auto tensor = tensor_of({4}, {{{0}, {4}}});
  const auto beyond = plan_error(target_of({archive_of(tensor, {{2}, {3}})}));
  BOOST_REQUIRE(beyond);
  BOOST_TEST((beyond->code() == ErrorCode::InvalidArgument));
  const auto dims = plan_error(target_of({archive_of(tensor, {{0, 0}, {4, 1}})}));
  BOOST_REQUIRE(dims);
  BOOST_TEST((dims->code() == ErrorCode::InvalidArgument));

  auto archive = archive_of(tensor, {{0}, {4}});
  archive.records[0].count_bytes += 1;
  BOOST_TEST(plan_error(target_of({archive})).has_value());
  archive.records[0].source = std::string("three");
  archive.records[0].count_bytes = 3;
  BOOST_TEST(plan_error(target_of({archive})).has_value());
  archive.records[0].source = ckpt::StorageSource{{.file = 0, .bytes = {0, 4}}};
  BOOST_TEST(plan_error(target_of({archive})).has_value());
}

BOOST_AUTO_TEST_CASE(empty_and_scalar_tensors_are_planned) {
  const auto empty = tensor_of({0, 3}, {});
  const auto scalar = tensor_of({}, {ckpt::Box{}});
  const Plan plan = ckpt::make_plan(
      target_of({archive_of(empty, ckpt::whole({0, 3})), archive_of(scalar, ckpt::Box{})}));
  BOOST_TEST(plan.records[0].copies.empty());
  BOOST_TEST(plan.records[1].copies.size() == 1);
  BOOST_TEST(plan.payload_bytes == 4);
}

BOOST_AUTO_TEST_SUITE_END()
