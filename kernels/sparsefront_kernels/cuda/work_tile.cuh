// Work that the host has dealt out to the blocks of the grid (gathered/sm90_schedule.py, blocked/sm90.py), and loads that
// run ahead of it.
#pragma once

#include "hopper.cuh"

namespace {

// CTA tile, first k-block, number of k-blocks; column, width / 64 - 1 in two bits from 28 on, and in the uppermost whether these are
// a part of the tile's k-blocks, whose sums are added up later.
struct WorkTile {
    int cta_tile, first, k_blocks, column, width;
    bool is_part;

    __device__ __forceinline__ explicit WorkTile(const int4& v) {
        cta_tile = warp_uniform(v.x), first = warp_uniform(v.y), k_blocks = warp_uniform(v.z);
        const uint32_t place = warp_uniform(v.w);
        column = place & 0xFFFFFFF, width = 64 * ((place >> 28 & 3) + 1), is_part = place >> 31;
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
