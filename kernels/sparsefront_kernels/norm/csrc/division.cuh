// How a norm of columns is divided among blocks and threads, and what a block keeps in shared memory.
#pragma once

#include "moments.cuh"

namespace column_norm {

// norm/layer_norm.py fills it in.
struct Arguments {
    const void* x;         // [d, m], rows `x_stride` elements apart
    const void* residual;  // likewise, or null
    const void* x_bias;    // [d]; types as `bias_at` has them
    const void* weight;
    const void* bias;
    void* sums;            // [d, m], contiguous, or null
    void* y;               // [d, m], contiguous
    long long x_stride, residual_stride;
    int x_bias_type, weight_type, bias_type, is_bfloat16;
    int d, m;              // m is a multiple of 8
    int cluster, columns, threads;  // the division
    int pdl;
    float eps;
};

constexpr int EIGHT = 8;  // columns of a thread: sixteen bytes of a row

// How the work is divided. VECTORS: rows of a tile that a thread holds; SLOTS: of the ring, a row of each operand each; BLOCKS:
// at least so many share a multiprocessor.
template <typename T, int CLUSTER_, int COLUMNS_, int THREADS_, int VECTORS_, int SLOTS_, int BLOCKS_, bool RESIDUAL_>
struct Shape {
    using Type = T;
    static constexpr int CLUSTER = CLUSTER_, COLUMNS = COLUMNS_, THREADS = THREADS_, VECTORS = VECTORS_, SLOTS = SLOTS_, BLOCKS = BLOCKS_;
    static constexpr bool RESIDUAL = RESIDUAL_;
    static constexpr int WARPS = THREADS / 32;
    static constexpr int EIGHTS = COLUMNS / EIGHT;    // threads of a row
    static constexpr int ROWS = THREADS / EIGHTS;     // of a block at a time
    static constexpr int FEATURES = ROWS * VECTORS;   // of a block, at most
    static constexpr int SLOT_BYTES = THREADS * 16, OPERANDS = RESIDUAL ? 2 : 1;
    static_assert(EIGHTS <= 32 && THREADS >= COLUMNS && THREADS % 32 == 0);
};

template <typename S>
struct Memory {
    alignas(16) uint8_t ring[S::SLOTS * S::OPERANDS * S::SLOT_BYTES];
    alignas(16) Moments of_warps[S::WARPS][S::COLUMNS];
    alignas(16) Moments of_blocks[2][S::CLUSTER][S::COLUMNS];  // of one tile and the next
    alignas(16) float scale[S::COLUMNS];
    alignas(16) float shift[S::COLUMNS];
    Count warp_counts[S::WARPS], block_counts[S::CLUSTER];
    float2 affine[S::FEATURES];  // weight and bias
    float x_bias[S::RESIDUAL ? S::FEATURES : 1];
};

}  // namespace column_norm
