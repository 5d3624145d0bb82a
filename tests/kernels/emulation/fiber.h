#pragma once

#include <cstddef>
#include <functional>

// Stacks that take turns on one thread, for x86-64. Sanitizers are told of each turn.
namespace emulation {

// A function that runs until it pauses, and goes on from there when it is resumed.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Forgets what the fiber was doing; the next resume() calls `body`. A body that is forgotten is
  // not unwound.
  void start(const std::function<void()>& body);
  // Runs until the body pauses or ends; true: it has ended. Nothing may be thrown out of a body.
  bool resume();
  // Called by the body: back to who resumed it.
  void pause();

 private:
  static void enter(Fiber* fiber);
  void leave();

  char* memory_;  // a page that nobody may touch, then the stack
  void* resting_ = nullptr;
  void* caller_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  bool has_ended_ = true;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
};

}  // namespace emulation
