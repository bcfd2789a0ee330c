// What the Hopper kernel is given, and which parts of the work are a block's own.
#pragma once

#include "../../cuda/epilogue.cuh"
#include "mma_tiles.cuh"

namespace {

constexpr int MOST_STAGES = 8;

constexpr uint32_t LAST = 1u << 8;                   // in what a stage says of its use: the work tile ends here

struct Problem {
    const void* x;                // [K, m], rows `x_stride` bytes apart
    const uint8_t* panels;        // MMA tiles of 16 x 64 weights, swizzled
    const int* k_blocks;          // [k_blocks, 68]: 64 rows of X, or -1 for a row of zeros; then the uses of the MMA tiles
                                  // (bit g: half 0 uses MMA tile g; bit 4 + g: half 1 does), and where in `panels` the
                                  // MMA tiles of half 0 and of half 1 begin
    const int2* cta_tiles;        // first k-block, number of k-blocks
    int k_blocks_of_each;         // where CTA tiles have equally many k-blocks, or the first `longer` one more, how many; else 0
    int longer;
    Epilogue epilogue;
    unsigned x_stride;
    int m;
    int cta_tile_count;
    int stages;                   // of the pipeline
    int raster_swizzle;                    // CTA tiles that are neighbours in the order of work
    int splits;                   // blocks that share the k-blocks of one work tile, a cluster; each then has one work tile only
    int pdl;                  // whether blocks may start before the kernels before this one in the stream have ended
    int prefetch;                 // what such blocks bring into L2 meanwhile: nothing where negative; else lists, and panels
                                  // where all halves of all CTA tiles use this many MMA tiles, one after the other
};

// The k-blocks of a CTA tile that fall to this block.
template <bool SPLIT>
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int cta_tile) {
        int2 all = make_int2(cta_tile * problem.k_blocks_of_each + min(cta_tile, problem.longer),
                             problem.k_blocks_of_each + (cta_tile < problem.longer));
        if (problem.k_blocks_of_each == 0) {  // one trip to memory more before the first load of X
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

// Work is dealt out to the columns of the grid, which are blocks or clusters of them: for each CTA tile as many work tiles as blocks
// of columns.
template <int BLOCK_M>
__device__ __forceinline__ int column_blocks(const Problem& problem) {
    return (problem.m + BLOCK_M - 1) / BLOCK_M;
}

// Work tile number `index`: which CTA tile, and its first column.
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
