// TMA copies (sm_90): tensor boxes between global and shared memory, multicast to the CTAs of a cluster; ldmatrix and
// stmatrix for 8 x 8 matrices. Names and semantics: PTX ISA, sections "cp.async.bulk.tensor", "cp.async.bulk",
// "ldmatrix" and "stmatrix".
#pragma once

#include <cstdint>

#include <cuda.h>

// Prefetches the descriptor, so that the first copy does not wait for it.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads a box at (inner, outer), in elements, into shared memory and completes its bytes on an mbarrier. Elements
// outside of the tensor are filled with zeros, and count as bytes.
__device__ __forceinline__ void copy_box(uint32_t target, const CUtensorMap* map, int inner, int outer, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            target),
        "l"(map), "r"(inner), "r"(outer), "r"(barrier)
        : "memory");
}

// im2col load: 64 channels from `channel` on that a run of output pixels sees through one filter tap. Reads images [n,
// h, w, c] from (w, h, n) on, in elements, shifted by the tap's offset (across, down). Pixels outside of the images are
// filled with zeros, and count as bytes.
__device__ __forceinline__ void copy_pixels(uint32_t target, const CUtensorMap* map, int channel, int w, int h, int n, uint16_t across,
                                            uint16_t down, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6], "
        "{%7, %8};" ::"r"(target),
        "l"(map), "r"(channel), "r"(w), "r"(h), "r"(n), "r"(barrier), "h"(across), "h"(down)
        : "memory");
}

// Multicasts one contiguous run (a multiple of 16 bytes) to the same shared-memory offset in several CTAs of the
// cluster, and completes its bytes on the mbarrier at the same offset in each. blocks: bit r selects the CTA of rank r.
__device__ __forceinline__ void copy_bulk_multicast(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier,
                                                    uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
            target),
        "l"(source), "r"(bytes), "r"(barrier), "h"(blocks)
        : "memory");
}

// Stores a box from shared memory; elements outside of the tensor are not written. The store joins the next committed
// group.
__device__ __forceinline__ void store_box(const CUtensorMap* map, int inner, int outer, uint32_t source) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(inner),
                 "r"(outer), "r"(source)
                 : "memory");
}

__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the newest PENDING store groups of this thread have read their shared memory.
template <int PENDING>
__device__ __forceinline__ void wait_for_reads_of_stores() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Arrives at the mbarrier at the same offset in another CTA of the cluster. It signals that wgmma has finished reading
// a stage. It does not order memory that threads wrote for the whole cluster: that would need a slow cluster-scope
// fence.
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// Named barrier for the 128 threads of a warpgroup. name: 1 to 15.
__device__ __forceinline__ void warpgroup_sync(uint32_t name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }

// Stores four 8 x 8 blocks with stmatrix: each quad holds a row; lane 8 i + r passes the address of row r of block i.
__device__ __forceinline__ void store_blocks(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// Same as store_blocks, for two blocks.
__device__ __forceinline__ void store_two_blocks(uint32_t address, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// Same as store_blocks, transposing each block.
__device__ __forceinline__ void store_transposed_blocks(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

// Same as store_two_blocks, transposing each block.
__device__ __forceinline__ void store_two_transposed_blocks(uint32_t address, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// Inverse of store_blocks.
__device__ __forceinline__ uint4 load_blocks(uint32_t address) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// Inverse of store_transposed_blocks.
__device__ __forceinline__ uint4 load_transposed_blocks(uint32_t address) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
