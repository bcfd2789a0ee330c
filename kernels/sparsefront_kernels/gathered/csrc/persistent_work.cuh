// What the kernel for many rows is given, and how its blocks share the work.
#pragma once

#include "../../cuda/epilogue.cuh"
#include "../../cuda/sparse_wgmma.cuh"
#include "../../cuda/work_tile.cuh"
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
    const uint8_t* panels;   // as in cluster_work.cuh; or each as sparse_wgmma.cuh has it
    const int* k_blocks;     // likewise; a half then uses all MMA tiles of a k-block or none
    const int4* work;        // CTA tile, first k-block, number of k-blocks, column and width / 64 - 1 in the upper four bits
    const int* work_begin;   // [blocks of the grid + 1]: the tiles of each block, in their order
    Epilogue epilogue;
    unsigned x_stride;
    int m;
};

}  // namespace
