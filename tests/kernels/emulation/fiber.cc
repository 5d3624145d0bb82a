// Stacks that take turns on one thread.
#include "kernels/emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the registers that a call preserves on this stack, leaves its end in *resting, and goes on
// where another stack rests.
extern "C" void emulation_switch(void** resting, void* next);
extern "C" void emulation_enter();
asm(R"(
  .text
  .globl emulation_switch
  .type emulation_switch, @function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emulation_switch, .-emulation_switch
  .globl emulation_enter
  .type emulation_enter, @function
emulation_enter:
  movq %rbx, %rdi
  callq *%rbp
  ud2
  .size emulation_enter, .-emulation_enter
)");

namespace emulation {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kStackBytes = size_t{64} << 10;

}  // namespace

Fiber::Fiber() {
  void* const memory = mmap(nullptr, kPageBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kPageBytes, PROT_NONE);
  memory_ = static_cast<char*>(memory);
}

Fiber::~Fiber() { munmap(memory_, kPageBytes + kStackBytes); }

void Fiber::start(const std::function<void()>& body) {
  body_ = &body;
  has_ended_ = false;
  char* const top = memory_ + kPageBytes + kStackBytes;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(memory_ + kPageBytes, kStackBytes);
#endif
  auto** const frame = reinterpret_cast<void**>(top) - 7;  // emulation_enter calls from `top`
  frame[5] = reinterpret_cast<void*>(&Fiber::enter);       // %rbp
  frame[4] = this;                                         // %rbx
  frame[6] = reinterpret_cast<void*>(&emulation_enter);
  resting_ = frame;
}

bool Fiber::resume() {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, memory_ + kPageBytes, kStackBytes);
  emulation_switch(&caller_, resting_);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
  emulation_switch(&caller_, resting_);
#endif
  return has_ended_;
}

void Fiber::pause() {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, caller_stack_, caller_stack_bytes_);
  emulation_switch(&resting_, caller_);
  __sanitizer_finish_switch_fiber(fake_stack, &caller_stack_, &caller_stack_bytes_);
#else
  emulation_switch(&resting_, caller_);
#endif
}

// These two leave frames behind that are never left.
__attribute__((no_sanitize("address"))) void Fiber::enter(Fiber* fiber) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &fiber->caller_stack_, &fiber->caller_stack_bytes_);
#endif
  (*fiber->body_)();
  fiber->has_ended_ = true;
  fiber->leave();
}

__attribute__((no_sanitize("address"))) void Fiber::leave() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(nullptr, caller_stack_, caller_stack_bytes_);
#endif
  emulation_switch(&resting_, caller_);
}

}  // namespace emulation
