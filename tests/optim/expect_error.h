#pragma once

#include <string>

#include <boost/test/unit_test.hpp>

#include <ckpt/error.h>

// The call throws ckpt::Error with this code, and names this key.
template <typename Call>
void expect_error(ckpt::ErrorCode code, const std::string& key, const Call& call) {
  BOOST_TEST_CONTEXT("expecting an error about '" << key << "'") {
    try {
      call();
      BOOST_ERROR("no error was thrown");
    } catch (const ckpt::Error& error) {
      BOOST_TEST(static_cast<int>(error.code()) == static_cast<int>(code), error.what());
      BOOST_TEST(error.where().key == key, error.what());
    }
  }
}
