#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

// One GPU on the CPU: cudart and cuBLASLt as kernels/ calls them, which remember what they are told
// and keep the rules that a caller can break. Memory is the host's; a stream does at once what it
// is given, a graph what it recorded each time that it is launched. Kernels run only where
// set_executes() says so, by the emulation of tests/kernels/emulation. Not thread-safe.
namespace fake_cuda {

// A call of the host, or a piece of work. Kernels have their own names, products cublasLtMatmul.
struct Call {
  std::string name;
  cudaStream_t stream = nullptr;
  bool is_kernel = false;                 // or a product
  std::vector<std::byte> arguments = {};  // of a kernel
  std::function<void()> run = {};
};

// Calls since reset(), in order.
const std::vector<Call>& calls();
// What streams were given, in order: the nodes of a graph each time that it is launched.
const std::vector<Call>& work();
std::vector<std::string> names_of(const std::vector<Call>& calls);

// Kernels that were launched into a capture before they had ever been launched: CUDA would load
// them in the middle of it.
const std::vector<std::string>& loaded_in_captures();

// Forgets calls, faults, errors and which kernels are loaded. What is alive stays alive.
void reset();
void set_executes(bool executes);
// The call with this number since reset(), counted from 0 over those that can fail, fails and does
// nothing.
void fail_at(uint64_t call, cudaError_t error = cudaErrorMemoryAllocation);
bool has_failed();
// As if another part of the program had made a call that failed.
void leave_error(cudaError_t error);
// Streams, events, graphs and handles that were made and not destroyed, and memory that is pinned.
int alive();

void set_multiprocessors(int count);
void set_memory_kilohertz(int kilohertz);
void set_cublas_version(size_t version);
void set_tile(int id);  // what cuBLASLt's algorithms say: a cublasLtMatmulTile_t
// What algorithms were asked for, since reset().
struct Product {
  cublasComputeType_t compute;
  cudaDataType type;
};
const std::vector<Product>& products();

// The name of a function of this program, without its namespaces, parameters and arguments.
std::string name_of_kernel(const void* function);

}  // namespace fake_cuda
