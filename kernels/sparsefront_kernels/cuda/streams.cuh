// What kernels that stream a weight need of Hopper: loads past L1, prefetches into L2, dependent launch, sums of a cluster.
#pragma once

#include <cstdint>

namespace streams {

// Programmatic dependent launch: what a grid does about the grids before and after it in the stream. The names are those of
// common/launch.py.
enum DependentLaunch {
    OFF = 0,    // starts when the one before has ended
    EARLY = 1,  // starts while it runs, and lets the next one start at once
    LATE = 2,   // starts while it runs, and lets the next one start when it has read its weight
};

// Read once, so that it need not stay in L1. Not through the read-only path: a kernel before this one may have written it.
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

// A hint: a multiple of 16 bytes come into L2, where a later write of the kernel before would still be seen.
__device__ __forceinline__ void prefetch(const void* source, uint32_t bytes) {
    if (bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for_grid_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_grid_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// As ::cluster_sync of hopper.cuh.
__device__ __forceinline__ void cluster_sync() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The four floats that another block of the cluster has where this block has `own` (in shared memory).
__device__ __forceinline__ float4 of_block(const float4* own, int rank) {
    const uint32_t here = static_cast<uint32_t>(__cvta_generic_to_shared(own));
    float4 v;
    asm volatile("{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %4, %5;\nld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(here), "r"(rank)
                 : "memory");
    return v;
}

}  // namespace streams
