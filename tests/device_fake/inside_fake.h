#pragma once

#include "fake_cuda.h"

// What the fake's two libraries share.
namespace fake_cuda {

// Remembers a call that can fail: the error that it is to fail with, if any.
cudaError_t begin_call(const char* name, cudaStream_t stream = nullptr);
void note_call(const char* name);  // that cannot
void give(Call call);              // work for a stream, or for the graph that it captures
bool can_take(cudaStream_t stream);
size_t shared_bytes_most(const void* kernel);  // of a launch

void remember_alive(const void* thing);
bool forget_alive(const void* thing);
bool is_alive(const void* thing);

template <class T>
T* make() {
  auto* const made = new T();
  remember_alive(made);
  return made;
}
template <class T>
bool destroy(T* thing) {
  if (!forget_alive(thing)) return false;
  delete thing;
  return true;
}

void forget_products();

}  // namespace fake_cuda
