// What the kernels for few rows of X are given, which part of it a block owns, and how they begin.
#pragma once

#include "../../cuda/hopper.cuh"

namespace {

constexpr int CHUNK = 16;            // kept inputs of a chunk: those of one product of the tensor cores
constexpr int LIST_BYTES = 2 * CHUNK;
template <typename T>
constexpr int FRAGMENT_BYTES = 256 * sizeof(T);  // 16 inputs x 16 outputs
constexpr unsigned NO_INPUT = 0xFFFF;
constexpr int MOST_WARPS = 8;
constexpr int GATHERERS = 4;         // warps that gather X into shared memory
constexpr int MOST_STAGES = 8;
constexpr int MOST_SPLITS = 8;
constexpr int MOST_WIDTH = 128;
constexpr int MOST_X_BYTES = 49152;  // of X that a block copies whole
constexpr int MOST_SHARED_BYTES = 229888;  // of a block, but for what is of fixed size

// Programmatic dependent launch: what a grid does about the grids before and after it in the stream. The weight is read before
// they have ended: a launch is PDL_OFF where one of them may have written it.
enum Pdl {
    PDL_OFF = 0,      // starts when the one before has ended
    PDL_EARLY = 1,      // is launched while the one before runs, fills its rings, and waits for its end before it reads X
    PDL_PREFETCH = 2,   // and has what its rings do not hold brought into L2 meanwhile
    PDL_PREFETCH_LATE = 3,  // and lets the next one come only once it has asked for all of its weight
};

struct Problem {
    const void* x;                 // element (row, input) at row * x_row_stride + input * x_input_stride
    unsigned x_input_stride;       // bytes
    long long x_row_stride;        // elements
    long long x_bytes;             // of X, to be brought into L2; 0 where it is spread too widely
    const uint8_t* lists;          // chunk after chunk: 16 inputs, lane q of a quad: four
    const uint8_t* panels;         // chunk after chunk: fragments
    long long chunks;              // of all row tiles
    const int2* row_tiles;            // first chunk, number of chunks
    int chunks_of_each;            // where all row tiles have equally many, one row tile after the other; else -1
    const int* outputs;            // [row_tiles, width]: output, or -1; null where row tiles simply count up
    int width;                     // outputs of a row tile
    int first_pruned, end_pruned;  // places in `outputs` of those that keep no input: all blocks share them
    int n, m;
    unsigned m_inverse;            // 2^19 / m, rounded up: divides numbers below 8192 exactly
    const void* bias;
    int bias_type;
    const void* residual;
    long long residual_row_stride, residual_output_stride;
    int activation;
    void* y;
    long long y_row_stride, y_output_stride;
    int splits;                    // blocks of a cluster, which share the chunks of a row tile
    int stages;                    // of a warp's ring
    int region;                    // bytes of shared memory of a warp's ring, or of the block's
    int stage_chunks;              // of a stage that the warps of a block share
    int x_offset;                  // in shared memory, of all of X
    int x_copy, x_copy_bytes;      // runs of X that are copied there, and of how many bytes; 0 where it stays in memory
    unsigned x_pitch;              // bytes from row to row of X there
    int pdl;
    int prefetch_bytes;            // that a block has brought into L2, at most
};

// X is small, but all blocks wait for it: its loads must not stand in line behind those of the weight.
__device__ __forceinline__ void prefetch_x(const void* x, long long bytes) {
    const long long at = 128ll * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
    if (at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(x) + at) : "memory");
}

// Part `index` of `count` of an array comes into L2, at most `most` bytes.
__device__ __forceinline__ void prefetch_part(const uint8_t* all, long long bytes, int index, int count, long long most) {
    const long long part = (bytes / count + 15) / 16 * 16, at = part * index;
    const long long size = min(min(most, part), bytes - at) / 16 * 16;
    if (size > 0) prefetch_bulk(all + at, static_cast<uint32_t>(size));
}

// The chunks of a block's row tile that are its own.
template <typename T>
struct Share {
    const uint8_t *lists, *panels;  // of the block's first chunk
    int count;                      // chunks of the block
    int panel_bytes;                // of a chunk

    // range: the row tile's first chunk and number of chunks.
    __device__ __forceinline__ Share(const Problem& problem, int2 range, int rank) {
        const int begin = range.y * rank / problem.splits;
        count = range.y * (rank + 1) / problem.splits - begin;
        panel_bytes = problem.width / 16 * FRAGMENT_BYTES<T>;
        lists = problem.lists + static_cast<long long>(range.x + begin) * LIST_BYTES;
        panels = problem.panels + static_cast<long long>(range.x + begin) * panel_bytes;
    }

    // All lists of the block, which come before anything else: X is gathered by them.
    __device__ __forceinline__ void load_lists(uint32_t target, uint32_t barrier) const {
        barrier_arrive_expect(barrier, count * LIST_BYTES);
        copy_bulk(target, lists, count * LIST_BYTES, barrier);
    }
};

// Between what may be read early and the rest: barriers are initialised, and the first of the weight is on its way.
__device__ __forceinline__ void wait_for_grids_before(const Problem& problem) {
    if (problem.pdl == PDL_EARLY || problem.pdl == PDL_PREFETCH) pdl_launch_dependents();
    __syncthreads();
    if (problem.pdl != PDL_OFF) pdl_wait();
}

}  // namespace
