// Included before a source (nvcc's -include): barriers and copies into shared memory come late now and then, so that a missing
// wait shows in the results. The macros do not change the functions, which hopper.cuh defines before them.
#pragma once

#include "../../../kernels/sparsefront_kernels/cuda/hopper.cuh"

namespace delays {

__device__ __forceinline__ uint32_t random_bits() {
    uint32_t clock;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock)::"memory");  // the same for lanes that run together: they stay together
    return (clock ^ (threadIdx.x / 32 + 64 * blockIdx.x) * 0x85ebca6bu) * 0x9e3779b1u;
}

__device__ __forceinline__ void now_and_then() {
    const uint32_t random = random_bits();
    if (random >> 29 == 0) __nanosleep(random >> 17 & 4095);
}

#ifdef SPARSEFRONT_WAITS_MISSING
__device__ __forceinline__ bool waits() { return random_bits() >> 30 != 0; }
#else
__device__ __forceinline__ bool waits() { return true; }
#endif

}  // namespace delays

#define barrier_wait(...) (delays::now_and_then(), delays::waits() ? barrier_wait(__VA_ARGS__) : (void)0, delays::now_and_then())
#define barrier_arrive(...) (delays::now_and_then(), barrier_arrive(__VA_ARGS__), delays::now_and_then())
#define barrier_arrive_expect(...) (delays::now_and_then(), barrier_arrive_expect(__VA_ARGS__), delays::now_and_then())
#define barrier_arrive_after_copies(...) (delays::now_and_then(), barrier_arrive_after_copies(__VA_ARGS__), delays::now_and_then())
#define copy_bulk(...) (delays::now_and_then(), copy_bulk(__VA_ARGS__), delays::now_and_then())
