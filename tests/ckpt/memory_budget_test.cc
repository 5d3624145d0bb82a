#include "work/workers.h"

#include <boost/test/unit_test.hpp>

#include "io/system_calls.h"
#include "support/errors.h"

using ckpt::ExecuteOptions;
using ckpt::MemoryBudget;

BOOST_AUTO_TEST_SUITE(memory_budget)

BOOST_AUTO_TEST_CASE(buffers_keep_to_what_is_allowed) {
  for (const uint64_t bytes : {1 << 20, 3'000'000, 16 << 20, 100 << 20, 1 << 30}) {
    for (const unsigned threads : {0u, 1u, 3u, 64u, 4096u}) {
      ExecuteOptions options;
      options.threads = threads;
      options.memory_bytes_max = bytes;
      const MemoryBudget budget = ckpt::make_memory_budget(options);
      BOOST_TEST(budget.threads >= 1);
      BOOST_TEST(budget.window_bytes % (64 << 10) == 0);
      BOOST_TEST(budget.count_bytes() <= bytes);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_the_process_holds_already_is_taken_off) {
  const uint64_t held_bytes = ckpt::resident_bytes();
  BOOST_TEST_REQUIRE(held_bytes > 0);
  ExecuteOptions options;
  options.threads = 4;
  options.process_bytes_max = held_bytes + (8 << 20);
  BOOST_TEST(ckpt::make_memory_budget(options).count_bytes() <= 8 << 20);
  options.process_bytes_max = held_bytes / 2;
  const auto error = test::error_of([&] { ckpt::make_memory_budget(options); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::InvalidArgument));
  BOOST_TEST(test::contains(error->hint(), "bytes are needed"));
}

BOOST_AUTO_TEST_CASE(what_a_run_notes_down_is_taken_off) {
  ExecuteOptions options;
  options.threads = 4;
  options.process_bytes_max = ckpt::resident_bytes() + (64 << 20);
  BOOST_TEST(ckpt::make_memory_budget(options, 60 << 20).count_bytes() <= 4 << 20);
  BOOST_TEST(!test::error_of([&] { ckpt::make_memory_budget(options); }));
  BOOST_TEST(bool(test::error_of([&] { ckpt::make_memory_budget(options, 64 << 20); })));
}

BOOST_AUTO_TEST_CASE(reading_back_keeps_to_what_is_left_and_is_never_refused) {
  ExecuteOptions options;
  options.threads = 64;
  options.process_bytes_max = ckpt::resident_bytes() + (8 << 20);
  const ckpt::ReadingBudget budget = ckpt::make_reading_budget(options);
  BOOST_TEST(budget.threads * budget.buffer_bytes <= 8 << 20);
  options.process_bytes_max = 1;
  BOOST_TEST(ckpt::make_reading_budget(options).threads == 1);
  BOOST_TEST(ckpt::make_reading_budget(options).buffer_bytes == 64 << 10);
}

BOOST_AUTO_TEST_CASE(the_expected_peak_is_what_is_held_and_noted_and_all_buffers) {
  ExecuteOptions options;
  options.threads = 2;
  const MemoryBudget budget = ckpt::make_memory_budget(options);
  const uint64_t peak_bytes = ckpt::expected_peak_bytes(budget, 0);
  BOOST_TEST(peak_bytes >= budget.count_bytes());
  BOOST_TEST(peak_bytes < uint64_t{1} << 40);
  ckpt::Plan plan;
  plan.records.resize(1 << 18);
  const uint64_t noted_bytes = ckpt::bookkeeping_bytes(plan, {});
  BOOST_TEST(noted_bytes >= 64 << 20);
  BOOST_TEST(ckpt::expected_peak_bytes(budget, noted_bytes) >= peak_bytes + (64 << 20));
}

BOOST_AUTO_TEST_SUITE_END()
