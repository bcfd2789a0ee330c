// Work tiles that the host has scheduled onto the CTAs (gathered/sm90_schedule.py, blocked/sm90.py), and early loads
// for them.
#pragma once

#include "hopper.cuh"

namespace {

// Unpacked from an int4: CTA tile, first k-block, number of k-blocks, and one word with the column (bits 0-27), width /
// 64 - 1 (bits 28-29) and is_part (bit 31): these are only some of the tile's k-blocks (split-K), whose partial sums
// are added up later.
struct WorkTile {
    int cta_tile, first, k_blocks, column, width;
    bool is_part;

    __device__ __forceinline__ explicit WorkTile(const int4& v) {
        cta_tile = warp_uniform(v.x), first = warp_uniform(v.y), k_blocks = warp_uniform(v.z);
        const uint32_t place = warp_uniform(v.w);
        column = place & 0xFFFFFFF, width = 64 * ((place >> 28 & 3) + 1), is_part = place >> 31;
    }
};

// Loads that the compiler keeps in place (volatile), so that the data has arrived by the time it is needed.
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
