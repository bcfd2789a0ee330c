// Parameters of the fp8 kernel, its shared memory layout, and its tensor core products.
#pragma once

#include "../../cuda/epilogue.cuh"
#include "../../cuda/pipeline.cuh"
#include "../../cuda/tensor_copy.cuh"
#include "../../cuda/wgmma.cuh"
#include "../../cuda/work_tile.cuh"

#define WITHOUT_PARENTHESES(...) __VA_ARGS__
#define WGMMA_E4M3(COLUMNS, NAMES, OUTS, LEFT, RIGHT, ADD)                                                              \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k32.f32.e4m3.e4m3 {" NAMES "}, %" #LEFT ", %" #RIGHT     \
                 ", add, 1, 1;\n}\n"                                                                                    \
                 : WITHOUT_PARENTHESES OUTS                                                                             \
                 : "l"(left), "l"(right), "n"(ADD_TO))

// e4m3 wgmma: d[64, COLUMNS] (+)= left[64, 32] · right[COLUMNS, 32]ᵀ, operands in shared memory with contiguous k.
template <int COLUMNS, int ADD_TO>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[COLUMNS / 2], uint64_t left, uint64_t right) {
    if constexpr (COLUMNS == 64) {
        WGMMA_E4M3(64, NAMES_32, (OUT_32(0)), 32, 33, 34);
    } else {
        static_assert(COLUMNS == 128);
        WGMMA_E4M3(128, NAMES_64, (OUT_64(0)), 64, 65, 66);
    }
}

#undef WGMMA_E4M3
#undef WITHOUT_PARENTHESES

// d[64, COLUMNS] (+)= left[64, 128] · right[COLUMNS, 128]ᵀ, both in swizzled rows of 128 bytes; asynchronous. FIRST: overwrites d.
template <int COLUMNS, bool FIRST>
__device__ __forceinline__ void multiply_k_block(float (&d)[COLUMNS / 2], uint32_t left, uint32_t right) {
    const uint64_t l = k_major_descriptor<128>(left), r = k_major_descriptor<128>(right);
    wgmma_fence();
    wgmma_e4m3<COLUMNS, !FIRST>(d, l, r);
#pragma unroll
    for (int part = 1; part < 4; ++part) wgmma_e4m3<COLUMNS, 1>(d, l + part * (32 >> 4), r + part * (32 >> 4));
    wgmma_commit();
}

namespace {

constexpr int K_BLOCK = 128;                 // inputs per stage, one byte each
constexpr int OUTPUTS = 2 * HALF;            // per CTA tile
constexpr int GROUP_ROWS = 64;               // rows of X per warpgroup
constexpr int GROUP_BYTES = GROUP_ROWS * K_BLOCK;
constexpr int PANEL_BYTES = HALF * K_BLOCK;
constexpr int OUT_BYTES = GROUP_ROWS * OUTPUTS * 2;  // bytes of Y per warpgroup
constexpr int COLUMN_BYTES = OUTPUTS * 8;    // scale and bias of each output, per warpgroup
constexpr int MOST_SHARED = 227 << 10;       // bytes per CTA
constexpr int WARPGROUP = 128;

// Shared memory of a CTA, from a multiple of 1024. GROUPS: consumer warpgroups. SPLIT: they alternate between stages of the same 64 rows
// of X, else each has its own 64 rows. GROUPED: a stage has a scale per row.
template <int GROUPS_, bool SPLIT, bool GROUPED>
struct Shape {
    static constexpr int GROUPS = GROUPS_, ROWS = SPLIT ? GROUP_ROWS : GROUPS * GROUP_ROWS;
    static constexpr int CONSUMER_THREADS = GROUPS * WARPGROUP, THREADS = CONSUMER_THREADS + WARPGROUP;
    static constexpr int X_BYTES = ROWS * K_BLOCK, SCALE_BYTES = GROUPED ? ROWS * 4 : 0;
    static constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    static constexpr int REST = GROUPS * (OUT_BYTES + COLUMN_BYTES + 8);  // one per warpgroup
    static constexpr int STAGES = (MOST_SHARED - REST) / (STAGE_BYTES + SCALE_BYTES + 2 * 8 + 4);
    static constexpr int OUT = STAGES * STAGE_BYTES, COLUMNS = OUT + GROUPS * OUT_BYTES, SCALES = COLUMNS + GROUPS * COLUMN_BYTES;
    static constexpr int FULL = SCALES + STAGES * SCALE_BYTES, EMPTY = FULL + 8 * STAGES, LANDED = EMPTY + 8 * STAGES;
    static constexpr int WORDS = LANDED + GROUPS * 8, BYTES = WORDS + 4 * STAGES;
    static_assert(BYTES <= MOST_SHARED);
};

struct Problem {
    CUtensorMap x;          // boxes of 128 inputs of ROWS rows, as 16-bit elements
    CUtensorMap y;          // boxes of 64 rows x 64 elements of 16 bits: as many outputs, or 128 if e4m3
    CUtensorMap residual;   // as y, if given
    const uint8_t* panels;  // [panels, 64 outputs, 128 inputs] e4m3, swizzled
    const int2* k_blocks;   // index of the 128 inputs; 4 * first panel + bit mask of the halves that use it
    const int4* work;       // [tiles]: outputs / 64 of half 0, of half 1 in the upper 16 bits (0xFFFF: none); first k-block;
                            // number of k-blocks; first row of X
    const int* work_begin;  // [clusters + 1]: first tile of each cluster, which has at least one
    const int4* first_work; // [clusters]: copy of the first tile of each
    const int* units;       // null, or for each of `work` the first unit of `sums` of this piece; -1 for a whole tile
    const float* x_scales;  // [m, x_groups]
    const float* w_scales;  // [n]
    float* y_scales;        // [m, n / 128] if Y is e4m3
    Epilogue epilogue;
    int x_groups;           // 1, or k / 128: one per k-block
    int m, n;
    float* sums;            // partial sums of pieces: units written by leave_sums, one per 64 rows of X and CTA tile
    const int4* cut_tiles;  // [cut tiles]: outputs as in `work`, first row of X, first unit, number of pieces
    int cut_tile_count;
    int piece_units;        // units per piece: 64 rows each, over all CTAs of a cluster
    int cluster;            // CTAs that share the weights of a CTA tile, for different rows
    int splits;             // or that share its k-blocks (split-K)
};

// A work tile.
struct Tile {
    int halves, first, k_blocks, row;

    __device__ __forceinline__ explicit Tile(const int4& v)
        : halves(warp_uniform(v.x)), first(warp_uniform(v.y)), k_blocks(warp_uniform(v.z)), row(warp_uniform(v.w)) {}

    // First output of a half, or -1.
    __device__ __forceinline__ int output(int half) const {
        const int found = halves >> 16 * half & 0xFFFF;
        return found == 0xFFFF ? -1 : found * HALF;
    }

    // The part of one of the CTAs that share its k-blocks.
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

// Loads a scale of X. Not through the read-only path (.nc): the preceding kernel may write it while this one already runs.
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
