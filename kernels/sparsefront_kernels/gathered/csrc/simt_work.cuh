// What the float32 kernel is given and how it is cut: the problem, the shape of a block, the work tile of a block and its
// kept inputs, the ring of stages.
#pragma once
#include "../../cuda/hopper.cuh"

namespace {

constexpr int WARPS = 4;  // that multiply, and as many that load: registers are moved between groups of four warps
constexpr int CONSUMERS = 32 * WARPS;
constexpr int THREADS = 2 * CONSUMERS;
constexpr int MOST_STAGES = 16;
constexpr int STAGES_AHEAD = 4;  // that are brought into L2 before the kernels before this one have ended

struct Problem {
    const float* x;        // [K, m], rows `x_stride` elements apart
    const float* panels;   // [kept inputs of all tiles, outputs of a tile]
    const int* kept;       // the kept inputs of all tiles
    const int2* tiles;     // first kept input, number of kept inputs
    int kept_of_each;      // where all tiles keep equally many inputs, how many; else 0
    const int* outputs;    // [tiles, outputs of a tile]: row of Y, or -1
    const void* bias;
    const float* residual;  // as y, or null
    float* y;              // [N, m], rows `y_stride` elements apart
    long long x_stride, y_stride, residual_stride;
    int bias_type;
    int activation;
    int m, k;
    int tile_count;
    int stages;
    int splits;
};

template <int WIDTH_, int WARP_SPLIT_K_, int OUTPUTS_, int COLUMNS_>
struct Shape {
    static constexpr int WIDTH = WIDTH_, WARP_SPLIT_K = WARP_SPLIT_K_, OUTPUTS = OUTPUTS_, COLUMNS = COLUMNS_;
    static constexpr int LANES_ALONG_N = 32 / OUTPUTS, LANES_ALONG_M = OUTPUTS;
    static constexpr int OUTPUT_STRIDE = 4 * LANES_ALONG_N, COLUMN_STRIDE = 4 * LANES_ALONG_M;  // of a thread's groups of 4
    static constexpr int WARPS_ALONG_N = WIDTH / 32;
    static constexpr int WARPS_ALONG_M = WARPS / (WARPS_ALONG_N * WARP_SPLIT_K);
    static constexpr int WARP_M = LANES_ALONG_M * COLUMNS;
    static constexpr int BLOCK_M = WARPS_ALONG_M * WARP_M;
    static constexpr int WARP_ROWS = 8;
    static constexpr int ROWS = WARP_ROWS * WARP_SPLIT_K;  // kept inputs of a stage
    static constexpr int X_FLOATS = ROWS * BLOCK_M;
    static constexpr int STAGE_BYTES = ROWS * (BLOCK_M + WIDTH) * 4;
    static constexpr int X_STEP = WARP_SPLIT_K * BLOCK_M * 4, W_STEP = WARP_SPLIT_K * WIDTH * 4;  // bytes to a warp's next input
    static constexpr int SUMS_BYTES = CONSUMERS * OUTPUTS * COLUMNS * 4;
    static constexpr int BLOCKS_PER_SM = COLUMNS == 8 && WARP_SPLIT_K == 1 ? 3 : 2;
    // Registers of a thread that multiplies and of one that loads: together twice what a thread starts with.
    static constexpr int CONSUMER_REGISTERS = BLOCKS_PER_SM == 2 ? 224 : 128;
    static constexpr int PRODUCER_REGISTERS = 32;
};

// The kept inputs that fall to this block: `count` of them from `first` on.
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int tile, int rows) {
        int2 all = make_int2(tile * problem.kept_of_each, problem.kept_of_each);
        if (problem.kept_of_each == 0) all = problem.tiles[tile];  // one trip to memory more before the first row of X
        const int k_blocks = (all.y + rows - 1) / rows, rank = rank_in_cluster();
        const int begin = k_blocks * rank / problem.splits * rows;
        const int end = min(k_blocks * (rank + 1) / problem.splits * rows, all.y);
        first = all.x + begin, count = max(end - begin, 0);
    }
};

// Work tile number `index`: all tiles of a block of columns are neighbours, since they share rows of X in L2.
template <typename S>
struct WorkTile {
    int tile, column;

    __device__ __forceinline__ WorkTile(const Problem& problem, int index)
        : tile(index % problem.tile_count), column(index / problem.tile_count * S::BLOCK_M) {}
};

// As barrier_wait, for those who have time: asking all the time takes issue slots from those who multiply.
__device__ __forceinline__ void barrier_wait_idly(uint32_t barrier, uint32_t phase) {
    while (true) {
        uint32_t ended;
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(ended)
            : "r"(barrier), "r"(phase)
            : "memory");
        if (ended) return;
        __nanosleep(500);
    }
}

// Position in the ring of stages.
struct Ring {
    int slot = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ Ring next(int stages) const {
        return slot + 1 == stages ? Ring{0, phase ^ 1} : Ring{slot + 1, phase};
    }
};

}  // namespace
