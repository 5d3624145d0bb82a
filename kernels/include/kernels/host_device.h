#pragma once

// A function that a kernel and its CPU twin share: one source for every formula, so that a test
// without a GPU runs the operations that the GPU runs.
#ifdef __CUDACC__
#define CKPT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define CKPT_HOST_DEVICE inline
#endif
