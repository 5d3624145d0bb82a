#pragma once

// A function with CKPT_WIDE_VECTORS is compiled three times: for processors with AVX-512
// (x86-64-v4), for those with AVX2 (x86-64-v3), and for all. The loader takes what fits,
// which needs glibc. What it calls gains by that only where it is CKPT_INLINED. It
// has to be in an unnamed namespace: GCC would export it.
// Not under sanitizers: the loader chooses before they are set up.
#if defined(__clang__)
#define CKPT_HAS_VERSIONS (__clang_major__ >= 19)
#else
#define CKPT_HAS_VERSIONS (__GNUC__ >= 12)
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && CKPT_HAS_VERSIONS && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CKPT_WIDE_VECTORS \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CKPT_WIDE_VECTORS
#endif
#define CKPT_INLINED [[gnu::always_inline]] inline
