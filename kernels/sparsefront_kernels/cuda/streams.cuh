// What weight-streaming kernels need of Hopper: loads that do not allocate in L1, L2 prefetch, PDL, cluster reductions.
#pragma once

#include <cstdint>

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

// Prefetch hint into L2; `bytes` is a multiple of 16. Safe before wait_for_grid_before: a later write of the previous
// kernel is still seen.
__device__ __forceinline__ void prefetch(const void* source, uint32_t bytes) {
    if (bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for_grid_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_grid_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Same as ::cluster_sync in hopper.cuh.
__device__ __forceinline__ void cluster_sync() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Loads the float4 that another CTA of the cluster has at the shared-memory offset of `own`.
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
