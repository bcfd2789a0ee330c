// What weight-streaming kernels share: modes of dependent launch, loads that do not allocate in L1, prefetches.
#pragma once

#include "hopper.cuh"

namespace streams {

// Programmatic dependent launch (PDL): when a grid starts and when it lets the next one start. Names as in
// cuda/launch.py.
enum DependentLaunch {
    OFF = 0,    // starts after the previous kernel has ended
    EARLY = 1,  // starts early, and lets the next kernel start at once
    LATE = 2,   // starts early, and lets the next kernel start after reading its weight
};

// Loads data that is read once, without allocating in L1. Not through the read-only path (.nc): a preceding kernel may
// have written the data.
__device__ __forceinline__ void load_words(uint32_t (&words)[4], const void* source) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(source));
}
__device__ __forceinline__ void load_words(uint32_t (&words)[2], const void* source) {
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(source));
}
__device__ __forceinline__ void load_words(uint32_t (&words)[1], const void* source) {
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(words[0]) : "l"(source));
}

// Prefetch hint into L2; `bytes` is a multiple of 16, or 0. Safe before pdl_wait: a later write of the previous kernel is
// still seen.
__device__ __forceinline__ void prefetch(const void* source, uint32_t bytes) {
    if (bytes > 0) prefetch_bulk(source, bytes);
}

}  // namespace streams
