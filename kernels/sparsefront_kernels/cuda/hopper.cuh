// Wrappers for asynchronous instructions: mbarriers, copies into shared memory, clusters, dependent launch. Names and
// semantics: PTX ISA, sections "mbarrier", "cp.async", "cp.async.bulk" and "cp.async.bulk.tensor".
//
// Before sm_90 there are neither bulk copies nor clusters nor dependent launch: a bulk copy is made of copies of 16 bytes,
// a block is alone in its cluster, and the waits return at once.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BEFORE_HOPPER
#endif

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialized mbarriers visible to TMA.
__device__ __forceinline__ void fence_barrier_init() {
#ifndef BEFORE_HOPPER
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Before bulk copies onto a barrier: arrives, and adds `bytes` to the transaction count that they will complete.
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
#ifndef BEFORE_HOPPER
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

// After the thread that called barrier_arrive_expect has started its bulk copies.
__device__ __forceinline__ void barrier_arrive_issued(uint32_t barrier) {
#ifdef BEFORE_HOPPER
    barrier_arrive(barrier);
#endif
}

// After the lanes of a converged warp have started their bulk copies, of which lane 0 called barrier_arrive_expect.
__device__ __forceinline__ void arrive_issued_by_warp(uint32_t barrier, int lane) {
#ifdef BEFORE_HOPPER
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
#endif
}

#ifdef BEFORE_HOPPER
#define MBARRIER_WAIT "mbarrier.test_wait"
#else
#define MBARRIER_WAIT "mbarrier.try_wait"
#endif
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        MBARRIER_WAIT ".parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n"
        "}\n" ::"r"(barrier),
        "r"(phase)
        : "memory");
}

// Copies 16 bytes, bypassing L1. If `bytes` is 0, reads nothing and writes zeros.
__device__ __forceinline__ void copy_16_bytes(uint32_t target, const void* source, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes)
                 : "memory");
}

// base + row * stride in one instruction.
__device__ __forceinline__ const void* row_address(const void* base, int row, uint32_t stride) {
    uint64_t address;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(row), "r"(stride), "l"(reinterpret_cast<uint64_t>(base)));
    return reinterpret_cast<const void*>(address);
}

__device__ __forceinline__ void wait_for_own_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Commits this thread's copies as a group; wait_for_copies waits until at most PENDING of the newest groups are in
// flight.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Arrives at the mbarrier once all of this thread's cp.async copies so far have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Whether a lane of a converged warp takes part in its bulk copies: one, or before Hopper all.
__device__ __forceinline__ bool copies_bulk(int lane) {
#ifdef BEFORE_HOPPER
    return true;
#else
    return lane == 0;
#endif
}

// TMA bulk copy of one contiguous run; `bytes` is a multiple of 16. lane: where those of a warp share it (copies_bulk).
__device__ __forceinline__ void copy_bulk(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier, int lane = -1) {
#ifdef BEFORE_HOPPER
    for (uint32_t at = 16 * max(lane, 0); at < bytes; at += 16 * (lane < 0 ? 1 : 32))
        copy_16_bytes(target + at, static_cast<const char*>(source) + at, 16);
    // adds an arrival to those that the barrier waits for, which takes place once this thread's copies have landed
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(barrier)
                 : "memory");
#endif
}

// Makes this thread's shared-memory writes visible to the async proxy (wgmma and TMA).
__device__ __forceinline__ void fence_for_tensor_cores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Prefetch hints into L2. They return no data, so a later write to this memory is still seen.
__device__ __forceinline__ void prefetch_line(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

__device__ __forceinline__ void prefetch_bulk(const void* address, uint32_t bytes) {
#ifndef BEFORE_HOPPER
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
#endif
}

// Whether the current GPU has programmatic dependent launch (PDL).
inline bool has_pdl() {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

// PDL: waits until the preceding kernels of the stream have completed and their writes are visible. Returns at once if
// this kernel was not launched early.
__device__ __forceinline__ void pdl_wait() {
#ifndef BEFORE_HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// PDL: lets the next kernel of the stream start, if launched with PDL, once every CTA has called this or exited.
__device__ __forceinline__ void pdl_launch_dependents() {
#ifndef BEFORE_HOPPER
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t rank_in_cluster() {
    uint32_t rank = 0;
#ifndef BEFORE_HOPPER
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

// Cluster barrier with release and acquire: writes before it are visible after it. The .aligned barrier needs converged
// warps, and callers may arrive diverged (from a loop that some threads leave early): hence the __syncwarp.
__device__ __forceinline__ void cluster_sync() {
#ifndef BEFORE_HOPPER
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Cluster barrier without memory ordering: for use where mbarriers order the data, or where nothing is read afterwards.
__device__ __forceinline__ void cluster_sync_relaxed() {
#ifndef BEFORE_HOPPER
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Maps a shared-memory address of this CTA to the same offset in another CTA of the cluster.
__device__ __forceinline__ uint32_t address_in_cluster(uint32_t address, uint32_t rank) {
    uint32_t there = address;
#ifndef BEFORE_HOPPER
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
    return there;
}

// Stores 16 bytes into the shared memory of any CTA of the cluster and completes them on an mbarrier there. Both
// addresses are shared::cluster addresses.
__device__ __forceinline__ void store_in_cluster(uint32_t target, const float* v, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     target),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
                 : "memory");
}

#ifdef BEFORE_HOPPER
#define LOAD_FROM_CLUSTER "ld.shared"
#else
#define LOAD_FROM_CLUSTER "ld.shared::cluster"
#endif
// Loads 16 bytes from another CTA of the cluster, at the same offset as `address` in this one.
__device__ __forceinline__ float4 load_from_cluster(uint32_t address, uint32_t rank) {
    const uint32_t there = address_in_cluster(address, rank);
    float4 v;
    asm volatile(LOAD_FROM_CLUSTER ".v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(there)
                 : "memory");
    return v;
}

__device__ __forceinline__ float4 load_16_bytes(uint32_t address) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// Broadcasts lane 0's value, so that the compiler knows that it is warp-uniform and keeps what depends on it in uniform
// registers, from which wgmma reads its descriptors.
__device__ __forceinline__ uint32_t warp_uniform(uint32_t v) { return __shfl_sync(~0u, v, 0); }

// Keeps a value in a register: stops the compiler from recomputing it at every use.
__device__ __forceinline__ uint32_t kept(uint32_t v) {
    uint32_t same;
    asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(v));
    return same;
}

__device__ __forceinline__ const char* kept(const char* v) {
    const char* same;
    asm volatile("mov.b64 %0, %1;" : "=l"(same) : "l"(v));
    return same;
}

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ void store_16_bytes(uint32_t address, const float* v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}

__device__ __forceinline__ void store_word(uint32_t address, uint32_t v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
