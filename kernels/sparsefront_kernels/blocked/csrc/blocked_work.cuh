// What the blocked kernel is given, and how a stage lies in shared memory.
#pragma once

#include "../../cuda/epilogue.cuh"
#include "../../cuda/pipeline.cuh"
#include "../../cuda/sparse_wgmma.cuh"
#include "../../cuda/tensor_copy.cuh"
#include "../../cuda/wgmma.cuh"
#include "../../cuda/work_tile.cuh"

namespace {

constexpr int K_BLOCK = 64;                        // inputs of a stage
constexpr int GROUP = 64;                          // rows of X that come together, and columns of a quarter of a work tile
constexpr int GROUP_BYTES = GROUP * K_BLOCK * 2;
constexpr int MOST_COLUMNS = 256, GROUPS = MOST_COLUMNS / GROUP;
constexpr int X_BYTES = GROUPS * GROUP_BYTES;
constexpr int WHOLE_PANEL_BYTES = HALF * K_BLOCK * 2;  // of one half: 64 outputs
constexpr int STAGE_BYTES = X_BYTES + 2 * WHOLE_PANEL_BYTES;
constexpr int STAGES = 4;
constexpr int QUARTER_BYTES = GROUP * HALF * 2;    // of Y
constexpr int QUARTER_BUFFERS = 2;                 // of each half
constexpr int PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int DYNAMIC_BYTES = 1024 + STAGES * STAGE_BYTES + 2 * QUARTER_BUFFERS * QUARTER_BYTES;

template <Weights WEIGHTS>
constexpr int PANEL_BYTES = WEIGHTS == Weights::ALL ? WHOLE_PANEL_BYTES : HALVED_PANEL_BYTES;

// Where X comes from: a matrix by rows, a matrix by inputs, or images of which every row is what an output pixel of a convolution
// sees, tap by tap, each with all channels.
enum class Source { ROWS, INPUTS, IMAGES };

// Of a convolution, what the place of an output pixel and of an input is made of.
struct Convolution {
    int channels, filter_w, out_h, out_w;
    int stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
};

struct Problem {
    CUtensorMap x;          // boxes of 64 rows of X x the inputs of a box; feature-major of inputs x 64 columns; or of images
    CUtensorMap y;          // boxes of 64 rows of Y x 64 outputs; feature-major of 64 outputs x 64 columns
    CUtensorMap residual;   // as y, where there is one
    const uint8_t* panels;  // [panels, 64 outputs, 64 inputs], swizzled; or as sparse_wgmma.cuh has them
    const int* k_blocks;    // [k_blocks, KBlock::WORDS]
    const int4* work;       // as WorkTile reads it; what it calls columns are those of each block of a cluster
    const int* work_begin;  // [clusters + 1]: the tiles of each cluster; those without k-blocks come last
    const int4* first_work; // [clusters]: the first tile of each, once more
    const int* units;       // null, or of each of `work` the first unit of `sums` that is this piece's; -1 where it is a whole tile
    const int* outputs;     // [CTA tiles, 2]: the first of the 64 outputs of each half, or -1
    Epilogue epilogue;      // bias, activation, and whether there is a residual
    Convolution convolution;
    int y_by_threads;       // whether the copy engine cannot store Y: feature-major, and its rows do not begin at 16 bytes each
    int relu_last;          // whether what is stored is max(0, sums with the residual), in place of an activation
    int m;
    int cluster;            // blocks that share the weights of a CTA tile: 1, 2 or 4
    float* sums;            // of pieces of work tiles: [units, 8 eights of columns, CONSUMERS, 4], a unit for 64 columns of a CTA tile
    const int4* cut_tiles;  // of the tiles that were cut: CTA tile, first column, first unit, number of pieces
    int cut_tile_count;
    int piece_units;        // of a piece: 64 columns each, of all blocks of a cluster
};

// 64 inputs that are loaded together, in boxes of INPUTS neighbours each.
template <int INPUTS>
struct KBlock {
    static constexpr int BOXES = K_BLOCK / INPUTS, WORDS = BOXES == 1 ? 2 : 2 * BOXES;
    int input[BOXES];  // the first of each box; K where a box is to be filled with zeros
    uint32_t place;    // four times the panel where the weights begin, and which halves use them: 1, 2 or 3

    __device__ __forceinline__ void load(const int* k_blocks, int index) {
        const int* words = k_blocks + static_cast<int64_t>(index) * WORDS;
#pragma unroll
        for (int box = 0; box < BOXES; ++box) input[box] = load_early(words + box);
        place = load_early(words + BOXES);
    }

    // The one that another lane holds.
    __device__ __forceinline__ KBlock of(int lane) const {
        KBlock found;
#pragma unroll
        for (int box = 0; box < BOXES; ++box) found.input[box] = __shfl_sync(~0u, input[box], lane);
        found.place = __shfl_sync(~0u, place, lane);
        return found;
    }
};

// X of a stage. By rows, each box of inputs has a region of its own, in which rows lie one after the other, `2 * INPUTS` bytes
// each, swizzled by that many. By inputs, 64 columns have a region of their own with a row of 128 bytes for each input.
template <int INPUTS, Source SOURCE>
struct XStage {
    static constexpr bool BY_INPUT = SOURCE == Source::INPUTS;
    static constexpr int REGION = BY_INPUT ? GROUP_BYTES : MOST_COLUMNS * INPUTS * 2;
    static constexpr int ORDER = BY_INPUT ? MN_MAJOR : K_MAJOR;

    // Where a box of 64 rows of X begins.
    __device__ __forceinline__ static uint32_t box(int group, int box) {
        return BY_INPUT ? group * REGION + box * INPUTS * 128 : box * REGION + group * GROUP * INPUTS * 2;
    }

    // The right operand's descriptor for 16 of the 64 inputs.
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

// The first column of a work tile that is this block's.
__device__ __forceinline__ int first_column(const Problem& problem, const WorkTile& tile, int rank) {
    return tile.column * problem.cluster + rank * tile.width;
}

// How many groups of 64 columns of it exist.
__device__ __forceinline__ int groups_of(const Problem& problem, const WorkTile& tile, int column) {
    return max(0, min(tile.width / GROUP, (problem.m - column + GROUP - 1) / GROUP));
}

}  // namespace
