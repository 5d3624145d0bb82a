#include "base/task_behind.h"

#include <boost/test/unit_test.hpp>

#include <stdexcept>
#include <thread>
#include <vector>

using ckpt::TaskBehind;

BOOST_AUTO_TEST_SUITE(task_behind)

BOOST_AUTO_TEST_CASE(tasks_run_in_their_order_on_another_thread) {
  std::vector<int> done;
  bool is_here = false;
  TaskBehind tasks;
  for (int i = 0; i < 5; ++i) {
    BOOST_TEST(tasks.start([&, i, here = std::this_thread::get_id()] {
      done.push_back(i);
      is_here = is_here || std::this_thread::get_id() == here;
      return true;
    }));
  }
  BOOST_TEST(tasks.finish());
  BOOST_TEST(done == (std::vector<int>{0, 1, 2, 3, 4}), boost::test_tools::per_element());
  BOOST_TEST(!is_here);
}

BOOST_AUTO_TEST_CASE(nothing_runs_after_a_task_that_said_no) {
  bool ran = false;
  TaskBehind tasks;
  BOOST_TEST(tasks.start([] { return false; }));
  BOOST_TEST(!tasks.start([&] { return ran = true; }));
  BOOST_TEST(!ran);
}

BOOST_AUTO_TEST_CASE(what_a_task_throws_is_thrown_to_who_waits_for_it) {
  TaskBehind tasks;
  BOOST_TEST(tasks.start([]() -> bool { throw std::runtime_error("cannot"); }));
  BOOST_CHECK_THROW(tasks.finish(), std::runtime_error);
  BOOST_TEST(tasks.finish());  // there is no task any more
}

BOOST_AUTO_TEST_CASE(a_task_that_nobody_waits_for_is_waited_for_at_the_end) {
  bool ran = false;
  {
    TaskBehind().start([&] { return ran = true; });
  }
  BOOST_TEST(ran);
}

BOOST_AUTO_TEST_SUITE_END()
