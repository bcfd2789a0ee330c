// What the fp8 kernel is given, and how its stages lie in shared memory.
#pragma once

#include "../../cuda/epilogue.cuh"
#include "../../cuda/pipeline.cuh"
#include "../../cuda/tensor_copy.cuh"
#include "../../cuda/work_tile.cuh"
#include "fp8_wgmma.cuh"

namespace {

constexpr int K_BLOCK = 128;                 // inputs of a stage, and bytes of their e4m3 numbers
constexpr int OUTPUTS = 2 * HALF;            // of a CTA tile
constexpr int GROUP_ROWS = 64;               // rows of X of a warpgroup
constexpr int GROUP_BYTES = GROUP_ROWS * K_BLOCK;
constexpr int PANEL_BYTES = HALF * K_BLOCK;
constexpr int OUT_BYTES = GROUP_ROWS * OUTPUTS * 2;  // of Y, of a warpgroup
constexpr int COLUMN_BYTES = OUTPUTS * 8;    // scale and bias of each output, of a warpgroup
constexpr int MOST_SHARED = 227 << 10;       // bytes of a block
constexpr int WARPGROUP = 128;

// How a block's shared memory is used, from an address that is a multiple of 1024. GROUPS: warpgroups that multiply. SPLIT: they take
// turns at the stages of the same 64 rows of X, else each has 64 rows of its own. GROUPED: a stage has a scale for each row.
template <int GROUPS_, bool SPLIT, bool GROUPED>
struct Shape {
    static constexpr int GROUPS = GROUPS_, ROWS = SPLIT ? GROUP_ROWS : GROUPS * GROUP_ROWS;
    static constexpr int CONSUMER_THREADS = GROUPS * WARPGROUP, THREADS = CONSUMER_THREADS + WARPGROUP;
    static constexpr int X_BYTES = ROWS * K_BLOCK, SCALE_BYTES = GROUPED ? ROWS * 4 : 0;
    static constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    static constexpr int REST = GROUPS * (OUT_BYTES + COLUMN_BYTES + 8);  // for which there is one of each warpgroup
    static constexpr int STAGES = (MOST_SHARED - REST) / (STAGE_BYTES + SCALE_BYTES + 2 * 8 + 4);
    static constexpr int OUT = STAGES * STAGE_BYTES, COLUMNS = OUT + GROUPS * OUT_BYTES, SCALES = COLUMNS + GROUPS * COLUMN_BYTES;
    static constexpr int FULL = SCALES + STAGES * SCALE_BYTES, EMPTY = FULL + 8 * STAGES, LANDED = EMPTY + 8 * STAGES;
    static constexpr int WORDS = LANDED + GROUPS * 8, BYTES = WORDS + 4 * STAGES;
    static_assert(BYTES <= MOST_SHARED);
};

struct Problem {
    CUtensorMap x;          // boxes of 128 inputs of ROWS rows, as 16-bit elements
    CUtensorMap y;          // boxes of 64 rows x 64 elements of 16 bits: as many outputs, or 128 where they are e4m3
    CUtensorMap residual;   // as y, where there is one
    const uint8_t* panels;  // [panels, 64 outputs, 128 inputs] e4m3, swizzled
    const int2* k_blocks;   // which 128 inputs; four times the first panel, and which halves use it: 1, 2 or 3
    const int4* work;       // of each work tile: outputs / 64 of half 0, in the upper 16 bits of half 1 (0xFFFF: none); first k-block;
                            // number of k-blocks; first row of X
    const int* work_begin;  // [clusters + 1]: the tiles of each cluster, at least one
    const int4* first_work; // [clusters]: the first tile of each, once more
    const int* units;       // null, or of each of `work` the first unit of `sums` that is this piece's; -1 where it is a whole tile
    const float* x_scales;  // [m, x_groups]
    const float* w_scales;  // [n]
    float* y_scales;        // [m, n / 128] where Y is e4m3
    Epilogue epilogue;
    int x_groups;           // 1, or k / 128: of each k-block its own
    int m, n;
    float* sums;            // of pieces of work tiles: units as leave_sums writes them, one for 64 rows of X and a CTA tile
    const int4* cut_tiles;  // of the tiles that were cut: outputs as in `work`, first row of X, first unit, number of pieces
    int cut_tile_count;
    int piece_units;        // of a piece: 64 rows each, of all blocks of a cluster
    int cluster;            // blocks that share the weights of a CTA tile, for different rows: 1 or 2
    int splits;             // or that share its k-blocks
};

// Of a work tile.
struct Tile {
    int halves, first, k_blocks, row;

    __device__ __forceinline__ explicit Tile(const int4& v)
        : halves(warp_uniform(v.x)), first(warp_uniform(v.y)), k_blocks(warp_uniform(v.z)), row(warp_uniform(v.w)) {}

    // The first output of a half, or -1.
    __device__ __forceinline__ int output(int half) const {
        const int found = halves >> 16 * half & 0xFFFF;
        return found == 0xFFFF ? -1 : found * HALF;
    }

    // Of the blocks that share its k-blocks, the part of one.
    __device__ __forceinline__ void take_part(int rank, int splits) {
        const int begin = k_blocks * rank / splits, end = k_blocks * (rank + 1) / splits;
        first += begin, k_blocks = end - begin;
    }
};

__device__ __forceinline__ float4 load_early(const float4* address) {
    const int4 v = load_early(reinterpret_cast<const int4*>(address));
    return make_float4(__int_as_float(v.x), __int_as_float(v.y), __int_as_float(v.z), __int_as_float(v.w));
}

__device__ __forceinline__ float load_float_early(const float* address) {
    return __int_as_float(load_early(reinterpret_cast<const int*>(address)));
}

// A scale of X. The kernel before may have written it while this one had begun: not through the read-only path (.nc).
__device__ __forceinline__ float load_x_scale(const float* address) {
    float v;
    asm volatile("ld.global.b32 %0, [%1];" : "=f"(v) : "l"(address));
    return v;
}

__device__ __forceinline__ int2 load_early(const int2* address) {
    int2 v;
    asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
    return v;
}

}  // namespace
