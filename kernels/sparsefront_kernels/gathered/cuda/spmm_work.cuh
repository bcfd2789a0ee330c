// What the Hopper kernel is given, and which pieces of the work are a block's own.
#pragma once

#include "epilogue.cuh"
#include "granules.cuh"

namespace {

constexpr int MOST_STAGES = 8;

constexpr uint32_t LAST = 1u << 8;                   // in what a stage says of its use: the item ends here

struct Problem {
    const void* x;                // [K, m], rows `x_stride` bytes apart
    const uint8_t* panels;        // granules of 16 x 64 weights, swizzled
    const int* steps;             // [steps, 68]: 64 rows of X, or -1 for a row of zeros; then the uses of the granules
                                  // (bit g: half 0 uses granule g; bit 4 + g: half 1 does), and where in `panels` the
                                  // granules of half 0 and of half 1 begin
    const int2* pairs;            // first step, number of steps
    int steps_of_each;            // where pairs have equally many steps, or the first `longer` one more, how many; else 0
    int longer;
    Epilogue epilogue;
    unsigned x_stride;
    int m;
    int pair_count;
    int stages;                   // of the pipeline
    int group;                    // pairs that are neighbours in the order of work
    int splits;                   // blocks that share the steps of one item, a cluster; each then has one item only
    int overlap;                  // whether blocks may start before the kernels before this one in the stream have ended
    int prefetch;                 // what such blocks bring into L2 meanwhile: nothing where negative; else lists, and panels
                                  // where all halves of all pairs use this many granules, one after the other
};

// The steps of a pair that fall to this block.
template <bool SPLIT>
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int pair) {
        int2 all = make_int2(pair * problem.steps_of_each + min(pair, problem.longer),
                             problem.steps_of_each + (pair < problem.longer));
        if (problem.steps_of_each == 0) {  // one trip to memory more before the first load of X
            all = problem.pairs[pair];
            all.x = uniform(all.x), all.y = uniform(all.y);
        }
        first = all.x, count = all.y;
        if constexpr (SPLIT) {
            const int rank = rank_in_cluster(), begin = all.y * rank / problem.splits;
            first += begin, count = all.y * (rank + 1) / problem.splits - begin;
        }
    }
};

// Work is dealt out to the columns of the grid, which are blocks or clusters of them: for each pair as many pieces as blocks
// of columns.
template <int BLOCK_M>
__device__ __forceinline__ int column_blocks(const Problem& problem) {
    return (problem.m + BLOCK_M - 1) / BLOCK_M;
}

// Piece of work number `index`: which pair, and its first column.
template <int BLOCK_M>
struct Item {
    int pair, column;

    __device__ Item(const Problem& problem, int index, int column_blocks) {
        const int per_group = problem.group * column_blocks;
        const int first = index / per_group * problem.group;
        const int pairs = min(problem.group, problem.pair_count - first);
        const int within = index % per_group;
        pair = first + within % pairs;
        column = within / pairs * BLOCK_M;
    }
};

}  // namespace
