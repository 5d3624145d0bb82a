// The main() of every test program.
#define BOOST_TEST_MODULE shardwise
#include <boost/test/unit_test.hpp>
