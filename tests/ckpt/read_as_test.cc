// Elements of a stated type, read from a checkpoint that says which type it has.
#include <ckpt/archive_builder.h>
#include <ckpt/checkpoint.h>
#include <ckpt/write_target.h>

#include <boost/test/unit_test.hpp>

#include "support/errors.h"
#include "support/memory_payloads.h"
#include "support/temporary_folder.h"

using ckpt::DType;
using test::contains;
using test::error_of;

namespace {

template <class T>
std::string bytes_of_numbers(const std::vector<T>& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Saved {
  Saved() {
    ckpt::ArchiveBuilder builder;
    const ckpt::NodeId dict = builder.tree().dict();
    const auto add = [&](const std::string& key, DType dtype, const ckpt::Extents& shape,
                         std::string bytes) {
      builder.tree().put(dict, key, builder.add_tensor(dtype, shape, std::move(bytes)));
    };
    add("grid", DType::Float32, {2, 3}, bytes_of_numbers<float>({1, 2, 3, 4, 5, 6.5}));
    add("half", DType::BFloat16, {2}, std::string(4, '\0'));
    add("steps", DType::Int64, {}, bytes_of_numbers<int64_t>({-7}));
    add("z", DType::Complex64, {1}, bytes_of_numbers<std::complex<float>>({{1, -1}}));
    ckpt::Target target;
    target.files.push_back({"", {builder.finish("archive", dict)}, {}});
    const test::MemoryPayloads none;
    const test::TemporaryFolder elsewhere;
    ckpt::write_target(std::move(target), {none, elsewhere.path()}, folder / "m.pt", {});
  }
  ckpt::Checkpoint open() const { return ckpt::Checkpoint::open(folder / "m.pt"); }
  test::TemporaryFolder folder;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(read_as)

BOOST_AUTO_TEST_CASE(elements_are_read_whole_and_of_a_box) {
  const Saved saved;
  const ckpt::Checkpoint checkpoint = saved.open();
  BOOST_TEST((checkpoint.read_as<float>("/grid") == std::vector<float>{1, 2, 3, 4, 5, 6.5}));
  BOOST_TEST((checkpoint.read_as<float>("/grid", ckpt::Box{{0, 1}, {2, 2}}) ==
              std::vector<float>{2, 3, 5, 6.5}));
  BOOST_TEST((checkpoint.read_as<int64_t>("/steps") == std::vector<int64_t>{-7}));
  BOOST_TEST((checkpoint.read_as<std::complex<float>>("/z").at(0) == std::complex<float>(1, -1)));
  BOOST_TEST(checkpoint.read_as<float>("/grid", ckpt::Box{{0, 0}, {0, 3}}).empty());
}

BOOST_AUTO_TEST_CASE(another_type_is_refused_with_the_one_that_is_there) {
  const Saved saved;
  const ckpt::Checkpoint checkpoint = saved.open();
  const struct {
    std::optional<ckpt::Error> error;
    std::string problem;
  } rows[] = {
      {error_of([&] { checkpoint.read_as<float>("/half"); }),
       "expected elements of float32, found bfloat16"},
      {error_of([&] { checkpoint.read_as<uint32_t>("/grid"); }),
       "expected elements of uint32, found float32"},
      {error_of([&] { checkpoint.read_as<double>("/steps"); }),
       "expected elements of float64, found int64"},
  };
  for (const auto& row : rows) {
    BOOST_REQUIRE(row.error);
    BOOST_TEST((row.error->code() == ckpt::ErrorCode::InvalidArgument));
    BOOST_TEST(row.error->problem() == row.problem);
    BOOST_TEST(!row.error->where().key.empty());
  }
}

BOOST_AUTO_TEST_CASE(keys_and_boxes_that_are_not_there_are_refused) {
  const Saved saved;
  const ckpt::Checkpoint checkpoint = saved.open();
  const auto unknown = error_of([&] { checkpoint.read_as<float>("/nothing"); });
  BOOST_REQUIRE(unknown);
  BOOST_TEST((unknown->code() == ckpt::ErrorCode::NotFound));
  const ckpt::Box boxes[] = {{{0, 2}, {1, 2}}, {{0}, {1}}, {{2, 0}, {1, 1}}};
  for (const ckpt::Box& box : boxes) {
    const auto error = error_of([&] { checkpoint.read_as<float>("/grid", box); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::InvalidArgument));
    BOOST_TEST(contains(error->problem(), "extends beyond the tensor"));
  }
}

BOOST_AUTO_TEST_SUITE_END()
