// Parameters of the cluster kernel, and how its work is divided among CTAs.
#pragma once

#include "../../cuda/epilogue.cuh"
#include "mma_tiles.cuh"

namespace {

constexpr int MOST_STAGES = 8;

constexpr uint32_t LAST = 1u << 8;                   // flag in a stage's `uses`: the work tile ends with this stage

struct Problem {
    const void* x;                // [K, m], row stride `x_stride` in bytes
    const uint8_t* panels;        // MMA tiles of 16 inputs x 64 outputs, swizzled
    // [k_blocks, 68]: 64 rows of X, or -1 for a row of zeros; then a bit mask of the MMA tiles in use (bit g: half 0 uses
    // MMA tile g; bit 4 + g: half 1 does), and the offsets in `panels` of the MMA tiles of half 0 and of half 1
    const int* k_blocks;
    const int2* cta_tiles;        // first k-block, number of k-blocks
    // k-blocks per CTA tile if all have equally many, or the first `longer` one more; else 0
    int k_blocks_of_each;
    int longer;
    Epilogue epilogue;
    unsigned x_stride;
    int m;
    int cta_tile_count;
    int stages;                   // pipeline stages
    int raster_swizzle;                    // rasterization swizzle: CTA tiles that are visited together for cache reuse
    int splits;                   // CTAs of a cluster that split the k-blocks of one work tile; then one work tile per CTA
    int pdl;                  // whether the kernel may start before its predecessors in the stream end
    // what a CTA prefetches into L2 before the PDL wait. Negative: nothing; 0: lists only; else lists and panels, if every
    // half of every CTA tile uses this many MMA tiles, stored contiguously
    int prefetch;
};

// This CTA's part of a CTA tile's k-blocks.
template <bool SPLIT>
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int cta_tile) {
        int2 all = make_int2(cta_tile * problem.k_blocks_of_each + min(cta_tile, problem.longer),
                             problem.k_blocks_of_each + (cta_tile < problem.longer));
        if (problem.k_blocks_of_each == 0) {  // costs one more round trip to memory before the first load of X
            all = problem.cta_tiles[cta_tile];
            all.x = warp_uniform(all.x), all.y = warp_uniform(all.y);
        }
        first = all.x, count = all.y;
        if constexpr (SPLIT) {
            const int rank = rank_in_cluster(), begin = all.y * rank / problem.splits;
            first += begin, count = all.y * (rank + 1) / problem.splits - begin;
        }
    }
};

// Number of column blocks. There are as many work tiles per CTA tile; the grid (its CTAs, or clusters) strides over all
// of them.
template <int BLOCK_M>
__device__ __forceinline__ int column_blocks(const Problem& problem) {
    return (problem.m + BLOCK_M - 1) / BLOCK_M;
}

// Maps a work-tile index to its CTA tile and first column.
template <int BLOCK_M>
struct WorkTile {
    int cta_tile, column;

    __device__ WorkTile(const Problem& problem, int index, int column_blocks) {
        const int per_swizzle = problem.raster_swizzle * column_blocks;
        const int first = index / per_swizzle * problem.raster_swizzle;
        const int cta_tiles = min(problem.raster_swizzle, problem.cta_tile_count - first);
        const int within = index % per_swizzle;
        cta_tile = first + within % cta_tiles;
        column = within / cta_tiles * BLOCK_M;
    }
};

}  // namespace
