// The global operator new, which can be told to fail.
#include "faults/allocations/failing_new.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

std::atomic<uint64_t> made = 0;
std::atomic<uint64_t> first_failing = kNever, last_failing = kNever;
std::atomic<int64_t> live = 0;

void* allocate(size_t count_bytes, size_t alignment) {
  const uint64_t number = made++;
  if (number >= first_failing && number <= last_failing) throw std::bad_alloc();
  const size_t room_bytes = (count_bytes + alignment) / alignment * alignment;  // not 0
  void* const memory = std::aligned_alloc(alignment, room_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  ++live;
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) --live;
  std::free(memory);
}

}  // namespace

void* operator new(size_t count_bytes) {
  return allocate(count_bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(size_t count_bytes, std::align_val_t alignment) {
  return allocate(count_bytes, static_cast<size_t>(alignment));
}
// These call the others in libstdc++, not in a sanitizer's runtime.
void* operator new[](size_t count_bytes) { return operator new(count_bytes); }
void* operator new(size_t count_bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(count_bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }

namespace test {

FailingNew::FailingNew(Kind kind, uint64_t number) {
  made = 0;
  last_failing = kind == Kind::Once ? number : kNever - 1;
  first_failing = kind == Kind::None ? kNever : number;
}

FailingNew::~FailingNew() { first_failing = kNever; }

uint64_t FailingNew::count() { return made; }

int64_t live_allocations() { return live; }

}  // namespace test
