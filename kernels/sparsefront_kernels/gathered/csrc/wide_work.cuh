// What the kernel for many rows is given, and how its blocks share the work.
#pragma once

#include "epilogue.cuh"
#include "mma_tiles.cuh"

namespace {

constexpr int MOST_COLUMNS = 256;   // of a work tile
constexpr int X_BYTES = MOST_COLUMNS * ROW_BYTES;
constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
constexpr int STAGES = 4;
constexpr int PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;

constexpr int QUARTER = MOST_COLUMNS / 4;  // columns that are stored together

struct Problem {
    const void* x;           // [K, m], rows `x_stride` bytes apart
    const uint8_t* panels;   // as in narrow_work.cuh
    const int* k_blocks;        // likewise
    const int4* work;        // CTA tile, first k-block, number of k-blocks, column and width / 64 - 1 in the upper four bits
    const int* work_begin;   // [blocks of the grid + 1]: the tiles of each block, in their order
    Epilogue epilogue;
    unsigned x_stride;
    int m;
};

struct WorkTile {
    int cta_tile, first, k_blocks, column, width;

    __device__ __forceinline__ explicit WorkTile(const int4& v) {
        cta_tile = warp_uniform(v.x), first = warp_uniform(v.y), k_blocks = warp_uniform(v.z);
        const uint32_t place = warp_uniform(v.w);
        column = place & 0xFFFFFFF, width = 64 * ((place >> 28) + 1);
    }
};

// Loads that stay where they are written, so that what they bring has arrived when it is needed.
__device__ __forceinline__ int4 load_early(const int4* address) {
    int4 v;
    asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
    return v;
}

__device__ __forceinline__ int load_early(const int* address) {
    int v;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(address));
    return v;
}

__device__ __forceinline__ uint32_t load_early(const uint16_t* address) {
    uint16_t v;
    asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(v) : "l"(address));
    return v;
}

}  // namespace
