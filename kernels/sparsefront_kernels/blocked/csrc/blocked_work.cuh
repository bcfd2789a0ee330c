// Parameters of the blocked kernel, and the layout of a pipeline stage in shared memory.
#pragma once

#include "../../cuda/epilogue.cuh"
#include "../../cuda/pipeline.cuh"
#include "../../cuda/wgmma.cuh"
#include "../../cuda/tensor_copy.cuh"
#include "../../cuda/work_tile.cuh"

namespace {

constexpr int K_BLOCK = 64;                        // inputs per pipeline stage
constexpr int GROUP = 64;                          // rows of X per TMA box, and columns per quarter of a work tile
constexpr int GROUP_BYTES = GROUP * K_BLOCK * 2;
constexpr int MOST_COLUMNS = 256, GROUPS = MOST_COLUMNS / GROUP;
constexpr int X_BYTES = GROUPS * GROUP_BYTES;
constexpr int WHOLE_PANEL_BYTES = HALF * K_BLOCK * 2;  // 64 outputs: one half of a CTA tile
constexpr int STAGE_BYTES = X_BYTES + 2 * WHOLE_PANEL_BYTES;
constexpr int STAGES = 4;
constexpr int QUARTER_BYTES = GROUP * HALF * 2;    // a 64 x 64 quarter of Y
constexpr int QUARTER_BUFFERS = 2;                 // per half
constexpr int PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int DYNAMIC_BYTES = 1024 + STAGES * STAGE_BYTES + 2 * QUARTER_BUFFERS * QUARTER_BYTES;

template <Weights WEIGHTS>
constexpr int PANEL_BYTES = WEIGHTS == Weights::ALL ? WHOLE_PANEL_BYTES : HALVED_PANEL_BYTES;

// Where X comes from: a row-major matrix, a feature-major matrix (row per input), or images (implicit im2col: row p of
// X is what output pixel p of a convolution sees, tap by tap, each with all channels).
enum class Source { ROWS, INPUTS, IMAGES };

// What locates an output pixel and an input of a convolution.
struct Convolution {
    int channels, filter_w, out_h, out_w;
    int stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
};

struct Problem {
    // boxes of 64 rows x the inputs of a box; if feature-major, of these inputs x 64 columns; or im2col boxes of images
    CUtensorMap x;
    CUtensorMap y;          // boxes of 64 rows x 64 outputs; if feature-major, of 64 outputs x 64 columns
    CUtensorMap residual;   // same boxes as y, if there is a residual
    const uint8_t* panels;  // [panels, 64 outputs, 64 inputs], swizzled; or the 2:4 layout of cuda/wgmma.cuh.cuh
    const int* k_blocks;    // [k_blocks, KBlock::WORDS]
    const int4* work;       // as read by WorkTile; its columns are those of each CTA of a cluster
    const int* work_begin;  // [clusters + 1]: first work tile of each cluster; tiles without k-blocks come last
    const int4* first_work; // [clusters]: copy of each cluster's first work tile
    // per work tile its first unit of `sums` if it is a split-K part, or -1 if it is a whole tile; null if no tile is
    // split
    const int* units;
    const int* outputs;     // [CTA tiles, 2]: first of the 64 outputs of each half, or -1
    Epilogue epilogue;      // bias, activation, and whether there is a residual
    Convolution convolution;
    // TMA cannot store Y: it is feature-major, and its row stride is not a multiple of 16 bytes
    int y_by_threads;
    int relu_last;          // store max(0, sums + residual), with the ReLU after the residual, instead of an activation before it
    int m;
    int cluster;            // CTAs that share the weights of a CTA tile by multicast: 1, 2 or 4
    // partial sums of split work tiles: [units, 8 blocks of eight columns, CONSUMERS, 4]; a unit is 64 columns of a CTA
    // tile
    float* sums;
    const int4* cut_tiles;  // split tiles: CTA tile, first column, first unit, number of parts
    int cut_tile_count;
    int piece_units;        // units per part, over all CTAs of a cluster
};

// The 64 inputs of one pipeline stage, loaded as boxes of INPUTS neighboring inputs.
template <int INPUTS>
struct KBlock {
    static constexpr int BOXES = K_BLOCK / INPUTS, WORDS = BOXES == 1 ? 2 : 2 * BOXES;
    int input[BOXES];  // first input of each box; K for a box of zeros (out of bounds)
    uint32_t place;    // 4 * (first panel of its weights) + bit mask of the halves that use it (1, 2 or 3)

    __device__ __forceinline__ void load(const int* k_blocks, int index) {
        const int* words = k_blocks + static_cast<int64_t>(index) * WORDS;
#pragma unroll
        for (int box = 0; box < BOXES; ++box) input[box] = load_early(words + box);
        place = load_early(words + BOXES);
    }

    // Broadcasts the k-block that another lane holds.
    __device__ __forceinline__ KBlock of(int lane) const {
        KBlock found;
#pragma unroll
        for (int box = 0; box < BOXES; ++box) found.input[box] = __shfl_sync(~0u, input[box], lane);
        found.place = __shfl_sync(~0u, place, lane);
        return found;
    }
};

// Layout of X in a pipeline stage. Row-major X: a region per box of inputs, with one row of 2 * INPUTS bytes per row of
// X, and a swizzle of that width (K-major operand). Feature-major X: a region per 64 columns, with one row of 128 bytes
// per input (MN-major operand).
template <int INPUTS, Source SOURCE>
struct XStage {
    static constexpr bool BY_INPUT = SOURCE == Source::INPUTS;
    static constexpr int REGION = BY_INPUT ? GROUP_BYTES : MOST_COLUMNS * INPUTS * 2;
    static constexpr int ORDER = BY_INPUT ? MN_MAJOR : K_MAJOR;

    // Offset of a box of 64 rows of X.
    __device__ __forceinline__ static uint32_t box(int group, int box) {
        return BY_INPUT ? group * REGION + box * INPUTS * 128 : box * REGION + group * GROUP * INPUTS * 2;
    }

    // Descriptor of the right operand for 16 of the 64 inputs.
    __device__ __forceinline__ static uint64_t descriptor(uint32_t stage, int sixteen) {
        if constexpr (BY_INPUT) {
            return operand_descriptor(operand_place(stage, REGION) + sixteen * (16 * 128 >> 4));
        } else {
            const int byte = sixteen * 16 % INPUTS * 2 + sixteen * 16 / INPUTS * REGION;
            return k_major_descriptor<INPUTS * 2>(stage + byte);
        }
    }
};

__device__ __forceinline__ int cluster_index(const Problem& problem) { return static_cast<int>(blockIdx.x) / problem.cluster; }

// First column of this CTA's part of a work tile.
__device__ __forceinline__ int first_column(const Problem& problem, const WorkTile& tile, int rank) {
    return tile.column * problem.cluster + rank * tile.width;
}

// How many of its 64-column groups exist, given M.
__device__ __forceinline__ int groups_of(const Problem& problem, const WorkTile& tile, int column) {
    return max(0, min(tile.width / GROUP, (problem.m - column + GROUP - 1) / GROUP));
}

}  // namespace
