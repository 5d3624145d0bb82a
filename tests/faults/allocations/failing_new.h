#pragma once

#include <cstdint>

namespace test {

// Which calls of the global operator new fail, on any thread, while one of these lives.
class FailingNew {
 public:
  enum class Kind : uint8_t { None, Once, ForGood };
  // Those from the one with this number on, counted from 0; Once: that one alone.
  FailingNew(Kind kind, uint64_t number);
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;
  ~FailingNew();

  static uint64_t count();  // calls since the latest one was made
};

int64_t live_allocations();  // made by operator new and not yet deleted

}  // namespace test
