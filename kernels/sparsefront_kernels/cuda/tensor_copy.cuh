// Bulk copies by the copy engine (sm_90): boxes of a tensor to and from shared memory, and the same bytes to all blocks of a
// cluster; matrices of 8 x 8 between registers and shared memory.
// Names and semantics: PTX ISA, sections "cp.async.bulk.tensor", "cp.async.bulk", "ldmatrix" and "stmatrix".
#pragma once

#include <cstdint>

#include <cuda.h>

// The descriptor is read early, so that the first copy need not wait for it.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A box at (inner, outer), in elements, into shared memory, where a barrier counts its bytes. What lies outside of the tensor
// comes as zeros, and counts.
__device__ __forceinline__ void copy_box(uint32_t target, const CUtensorMap* map, int inner, int outer, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            target),
        "l"(map), "r"(inner), "r"(outer), "r"(barrier)
        : "memory");
}

// What a column of output pixels of a convolution sees through one tap of the filter, neighboring channels of it: pixels of images
// [n, h, w, c] from (w, h, n) on, in elements, each moved by the tap's offset. Pixels outside of the images come as zeros, and count.
__device__ __forceinline__ void copy_pixels(uint32_t target, const CUtensorMap* map, int channel, int w, int h, int n, uint16_t across,
                                            uint16_t down, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6], "
        "{%7, %8};" ::"r"(target),
        "l"(map), "r"(channel), "r"(w), "r"(h), "r"(n), "r"(barrier), "h"(across), "h"(down)
        : "memory");
}

// One contiguous run of a multiple of 16 bytes to the same place in several blocks of the cluster, each of whose barriers, at
// the same place too, counts its bytes. blocks: bit r for the block of rank r.
__device__ __forceinline__ void copy_bulk_multicast(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier,
                                                    uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
            target),
        "l"(source), "r"(bytes), "r"(barrier), "h"(blocks)
        : "memory");
}

// A box from shared memory; what lies outside of the tensor is not written. It belongs to the group that is committed next.
__device__ __forceinline__ void store_box(const CUtensorMap* map, int inner, int outer, uint32_t source) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(inner),
                 "r"(outer), "r"(source)
                 : "memory");
}

__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all but the last PENDING groups of this thread have been read from shared memory.
template <int PENDING>
__device__ __forceinline__ void wait_for_reads_of_stores() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// An arrival at the barrier that lies at the same place in another block of the cluster. It says that tensor cores have read
// something, which is over; to order what threads wrote for all of the cluster, it would need a fence that takes long.
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// Waits for the 128 threads of a warpgroup. name: 1 to 15.
__device__ __forceinline__ void warpgroup_sync(uint32_t name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }

// Four blocks of 8 x 8, of whose rows a quad of lanes holds one each; lane 8 i + r gives the address of row r of block i.
__device__ __forceinline__ void store_blocks(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// As store_blocks, two of them.
__device__ __forceinline__ void store_two_blocks(uint32_t address, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// As store_blocks, their transposes.
__device__ __forceinline__ void store_transposed_blocks(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

// As store_two_blocks, their transposes.
__device__ __forceinline__ void store_two_transposed_blocks(uint32_t address, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// The way back from store_blocks.
__device__ __forceinline__ uint4 load_blocks(uint32_t address) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// The way back from store_transposed_blocks.
__device__ __forceinline__ uint4 load_transposed_blocks(uint32_t address) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
