// What no stored window of a buffer covers: the elements of displaced parameters that are lost.
#include "issues/bucket_windows.h"

#include <boost/test/unit_test.hpp>

using optim::ElementRange;
using optim::uncovered;
using optim::WindowedBuffer;
using optim::WindowedParam;

namespace {

// Two buckets of 128: of the first 100 elements are parameters', so that the second one's are
// shown 28 too late. Elements behind 200 are none.
WindowedBuffer two_buckets() {
  WindowedBuffer buffer;
  buffer.element_count = 200;
  buffer.params = {{0, {0, 100}, 0, true}, {1, {128, 192}, 28, true}, {2, {192, 228}, 28, true}};
  return buffer;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bucket_windows)

BOOST_AUTO_TEST_CASE(what_lies_between_windows_is_lost) {
  const WindowedBuffer buffer = two_buckets();
  BOOST_TEST((uncovered(buffer, buffer.params[1]) == std::vector<ElementRange>{{100, 128}}));
  BOOST_TEST(uncovered(buffer, buffer.params[2]).empty());
}

BOOST_AUTO_TEST_CASE(a_window_beyond_the_buffer_shows_nothing) {
  WindowedBuffer buffer = two_buckets();
  buffer.element_count = 180;
  BOOST_TEST((uncovered(buffer, buffer.params[2]) == std::vector<ElementRange>{{180, 200}}));
}

BOOST_AUTO_TEST_CASE(a_copy_that_is_not_stored_shows_nothing) {
  WindowedBuffer buffer = two_buckets();
  buffer.params[1].is_stored = false;
  BOOST_TEST((uncovered(buffer, buffer.params[2]) == std::vector<ElementRange>{{164, 192}}));
}

BOOST_AUTO_TEST_CASE(a_parameter_that_is_not_displaced_is_all_there) {
  const WindowedBuffer buffer = two_buckets();
  BOOST_TEST(uncovered(buffer, buffer.params[0]).empty());
}

BOOST_AUTO_TEST_SUITE_END()
