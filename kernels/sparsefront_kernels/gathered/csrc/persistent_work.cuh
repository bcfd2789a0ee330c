// What the persistent kernel is given, and how its blocks share the work.
#pragma once

#include "../../cuda/epilogue.cuh"
#include "../../cuda/sparse_wgmma.cuh"
#include "../../cuda/work_tile.cuh"
#include "mma_tiles.cuh"

namespace {

constexpr int QUARTER = 64;  // columns that are stored together

// A block of the grid, by the columns of its widest work tile.
template <int WIDEST>
struct Block {
    static constexpr int X_BYTES = WIDEST * ROW_BYTES;
    static constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    static constexpr int STAGES = WIDEST == 256 ? 4 : 6;
    // Groups of producer warps fill the stages in turn: the instructions around the copies take as long as the copies, so that
    // those of several stages should run side by side.
    static constexpr int PRODUCER_GROUPS = WIDEST == 256 ? 2 : 4, GROUP_WARPS = 2;
    static constexpr int PRODUCERS = 32 * PRODUCER_GROUPS * GROUP_WARPS, THREADS = CONSUMERS + PRODUCERS;
    // Of the tile's sums, where its k-blocks are shared.
    static constexpr int PARTIAL_QUADS = WIDEST * 2 * HALF / 4;
};

struct Problem {
    const void* x;           // [K, m], rows `x_stride` bytes apart
    const uint8_t* panels;   // as in cluster_work.cuh; or each as sparse_wgmma.cuh has it
    const int* k_blocks;     // likewise; a half then uses all MMA tiles of a k-block or none
    const int4* work;        // as WorkTile reads it; of a part of a tile's k-blocks the first word says where its sums go
    const int* work_begin;   // [blocks of the grid + 1]: the tiles of each block, in their order
    float4* partials;        // [parts of tiles, PARTIAL_QUADS]: sums as the consumer threads hold them
    Epilogue epilogue;
    unsigned x_stride;
    int m;
};

}  // namespace
