#include <ckpt/run_jobs.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <set>
#include <stdexcept>
#include <vector>

BOOST_AUTO_TEST_SUITE(run_jobs)

BOOST_AUTO_TEST_CASE(every_job_runs_once_and_workers_are_numbered) {
  for (const unsigned threads : {1u, 2u, 7u, 100u}) {
    std::vector<std::atomic<int>> runs(50);
    std::atomic<unsigned> highest = 0;
    ckpt::run_jobs(runs.size(), threads, [&](size_t job, unsigned worker) {
      runs[job] += 1;
      if (worker > highest) highest = worker;
    });
    for (const auto& count : runs) BOOST_TEST(count == 1);
    BOOST_TEST(highest < threads);
  }
  ckpt::run_jobs(0, 4, [](size_t, unsigned) { BOOST_ERROR("there is no job"); });
}

BOOST_AUTO_TEST_CASE(one_thread_runs_the_jobs_in_order) {
  std::vector<size_t> order;
  ckpt::run_jobs(5, 1, [&](size_t job, unsigned) { order.push_back(job); });
  BOOST_TEST((order == std::vector<size_t>{0, 1, 2, 3, 4}));
}

BOOST_AUTO_TEST_CASE(the_exception_of_the_lowest_job_is_thrown_however_many_threads_there_are) {
  for (const unsigned threads : {1u, 2u, 4u, 16u}) {
    for (int round = 0; round < 20; ++round) {
      std::string message;
      try {
        ckpt::run_jobs(1000, threads, [](size_t job, unsigned) {
          if (job >= 37) throw std::runtime_error(std::to_string(job));
        });
      } catch (const std::runtime_error& error) {
        message = error.what();
      }
      BOOST_TEST(message == "37");
    }
  }
}

// Each worker starts at most one of the jobs that fail.
BOOST_AUTO_TEST_CASE(after_an_exception_a_worker_starts_no_further_job) {
  for (const unsigned threads : {1u, 4u}) {
    std::atomic<size_t> started = 0;
    BOOST_CHECK_THROW(ckpt::run_jobs(100000, threads,
                                     [&](size_t job, unsigned) {
                                       started += 1;
                                       if (job >= 10) throw std::runtime_error("stop");
                                     }),
                      std::runtime_error);
    BOOST_TEST(started > 10);
    BOOST_TEST(started <= 10 + threads);
  }
}

BOOST_AUTO_TEST_CASE(zero_threads_means_one_for_each_core) {
  BOOST_TEST(ckpt::thread_count(0) >= 1);
  BOOST_TEST(ckpt::thread_count(3) == 3);
}

BOOST_AUTO_TEST_SUITE_END()
