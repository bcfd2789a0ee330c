// Included before a source (nvcc's -include): barriers and copies into shared memory come late now and then, so that a missing
// wait shows in the results. The macros do not change the functions, which the headers define before them. Lanes of a warp are
// delayed together: what orders them is not tried.
#pragma once

#include "../../../kernels/sparsefront_kernels/cuda/hopper.cuh"
#include "../../../kernels/sparsefront_kernels/cuda/tensor_copy.cuh"

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

#define DELAYED(call) (delays::now_and_then(), call, delays::now_and_then())
#define barrier_wait(...) DELAYED((delays::waits() ? barrier_wait(__VA_ARGS__) : (void)0))
#define barrier_arrive(...) DELAYED(barrier_arrive(__VA_ARGS__))
#define barrier_arrive_expect(...) DELAYED(barrier_arrive_expect(__VA_ARGS__))
#define barrier_arrive_after_copies(...) DELAYED(barrier_arrive_after_copies(__VA_ARGS__))
#define barrier_arrive_in_cluster(...) DELAYED(barrier_arrive_in_cluster(__VA_ARGS__))
#define copy_bulk(...) DELAYED(copy_bulk(__VA_ARGS__))
#define copy_bulk_multicast(...) DELAYED(copy_bulk_multicast(__VA_ARGS__))
#define copy_box(...) DELAYED(copy_box(__VA_ARGS__))
#define copy_pixels(...) DELAYED(copy_pixels(__VA_ARGS__))
