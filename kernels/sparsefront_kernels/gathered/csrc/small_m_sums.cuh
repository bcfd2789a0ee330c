// The sums of warps and blocks become elements of Y, for the kernels for few rows of X.
#pragma once

#include "../../cuda/epilogue_math.cuh"
#include "small_m_products.cuh"

namespace {

__device__ __forceinline__ int output_at(const Problem& problem, int place) {
    return problem.outputs != nullptr ? problem.outputs[place] : place < problem.n ? place : -1;
}

// What a block needs at the end, asked for early.
struct Targets {
    int output = -1;
    float bias = 0.0f;

    // outputs: how many the block has, at most one to a thread; `first`: the place of its first in the row tiles' outputs.
    __device__ __forceinline__ Targets(const Problem& problem, int first, int outputs) {
        if (threadIdx.x >= outputs) return;
        output = output_at(problem, first + threadIdx.x);
        if (output >= 0) bias = bias_at(problem.bias, problem.bias_type, output);
    }
};

__device__ __forceinline__ float load_float_from_cluster(uint32_t address) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

struct SharedTargets {
    int output[MOST_WIDTH];
    float bias[MOST_WIDTH];
};

// In shared memory a warp's sums lie as [fragment][row block][4][33]: what lane l holds as its i-th is at [i][l].
constexpr int BLOCK_SUMS = 4 * 33;

template <int FRAGMENTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void store_sums(float* target, const float (&acc)[FRAGMENTS][COLUMN_BLOCKS][4], int lane) {
#pragma unroll
    for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
#pragma unroll
        for (int block = 0; block < COLUMN_BLOCKS; ++block) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                target[(fragment * COLUMN_BLOCKS + block) * BLOCK_SUMS + i * 33 + lane] = acc[fragment][block][i];
        }
    }
}

// One element of Y of a block. INTERLEAVED: which rows of X the columns of a row block are.
template <int COLUMN_BLOCKS, bool INTERLEAVED>
struct Element {
    int output, row, at;  // output: of the block's; at: among the sums

    // Elements are counted so that neighbours are neighbours in Y. outputs: 2 to the power of output_bits.
    __device__ __forceinline__ Element(const Problem& problem, int output_bits, int index) {
        if (problem.y_row_stride == 1) {
            output = static_cast<unsigned>(index) * problem.m_inverse >> 19, row = index - output * problem.m;
        } else {
            row = index >> output_bits, output = index - (row << output_bits);
        }
        const int column = INTERLEAVED ? row / COLUMN_BLOCKS : row % 8, block = INTERLEAVED ? row % COLUMN_BLOCKS : row / 8;
        at = (output / 16 * COLUMN_BLOCKS + block) * BLOCK_SUMS + (output / 8 % 2 * 2 + column % 2) * 33 + output % 8 * 4 + column / 2;
    }
};

// Apart from the rest, which is faster the shorter it is.
__device__ __noinline__ float activated_apart(float v, int activation) { return activated(v, activation); }

// sum: with the bias.
template <typename T>
__device__ __forceinline__ void write(const Problem& problem, int output, int row, float sum) {
    if (problem.activation != NONE) sum = activated_apart(sum, problem.activation);
    if (problem.residual != nullptr) {
        const long long from = row * problem.residual_row_stride + output * problem.residual_output_stride;
        sum += widened(static_cast<const T*>(problem.residual)[from]);
    }
    static_cast<T*>(problem.y)[row * problem.y_row_stride + output * problem.y_output_stride] = rounded<T>(sum);
}

template <typename T, typename Element>
__device__ __forceinline__ void write(const Problem& problem, const SharedTargets& targets, const Element& element, float sum) {
    const int output = targets.output[element.output];
    if (output >= 0) write<T>(problem, output, element.row, sum + targets.bias[element.output]);
}

// This block's part of the outputs that keep no input, by its first `threads` threads, while X is on its way.
template <typename T>
__device__ __noinline__ void write_pruned(const Problem& problem, int threads) {
    const int places = problem.end_pruned - problem.first_pruned;
    for (int index = blockIdx.x * threads + threadIdx.x; index < places * problem.m; index += gridDim.x * threads) {
        // counted so that neighbours are neighbours in Y
        const bool by_row = problem.y_row_stride == 1;
        const int place = by_row ? index / problem.m : index % places, row = by_row ? index % problem.m : index / places;
        const int output = output_at(problem, problem.first_pruned + place);
        if (output >= 0) write<T>(problem, output, row, bias_at(problem.bias, problem.bias_type, output));
    }
}

// In pairs; those that do not take part are zero.
__device__ __forceinline__ float sum_of(const float (&v)[8]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// For the elements from `first` to `last` of this thread: load(place, v) of several, all on their way at once, then
// use(element, sum).
template <int COLUMN_BLOCKS, bool INTERLEAVED, typename Load, typename Use>
__device__ __forceinline__ void for_elements(const Problem& problem, int output_bits, int first, int last, int threads, const Load& load,
                                             const Use& use) {
    constexpr int AT_ONCE = COLUMN_BLOCKS == 1 ? 1 : 4;
    for (int index = first + threadIdx.x; index < last; index += AT_ONCE * threads) {
        float v[AT_ONCE][8];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int here = index + i * threads;
            load(Element<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, here < last ? here : index).at, v[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int here = index + i * threads;
            if (here < last) use(Element<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, here), sum_of(v[i]));
        }
    }
}

// Adds up the sums of `warp_split_k` warps (8 at most), which begin `stride` floats apart in shared memory, and then of the
// cluster's blocks, and writes Y. outputs: of the block. `threads` threads take part.
template <typename T, int COLUMN_BLOCKS, bool INTERLEAVED>
__device__ __forceinline__ void reduce_and_write(const Problem& problem, const SharedTargets& targets, float* sums, int stride,
                                                 int warp_split_k, int outputs, int threads, int rank) {
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    const int elements = outputs * problem.m, output_bits = 31 - __clz(outputs);
    const bool alone = problem.splits == 1;
    const auto of_k_slices = [&](int at, float(&v)[8]) {
#pragma unroll
        for (int k_slice = 0; k_slice < 8; ++k_slice) v[k_slice] = k_slice < warp_split_k ? sums[k_slice * stride + at] : 0.0f;
    };
    if (alone) {
        for_elements<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, 0, elements, threads, of_k_slices,
                                                 [&](const auto& element, float sum) { write<T>(problem, targets, element, sum); });
        return;
    }
    if (warp_split_k > 1) {
        for_elements<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, 0, elements, threads, of_k_slices,
                                                 [&](const auto& element, float sum) { sums[element.at] = sum; });
    }
    uint32_t theirs[8];
#pragma unroll
    for (int other = 0; other < 8; ++other) theirs[other] = address_in_cluster(shared_address(sums), min(other, problem.splits - 1));
    cluster_sync();
    const auto of_blocks = [&](int at, float(&v)[8]) {
#pragma unroll
        for (int other = 0; other < 8; ++other) v[other] = other < problem.splits ? load_float_from_cluster(theirs[other] + 4 * at) : 0.0f;
    };
    for_elements<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, elements * rank / problem.splits, elements * (rank + 1) / problem.splits,
                                             threads, of_blocks,
                                             [&](const auto& element, float sum) { write<T>(problem, targets, element, sum); });
    cluster_sync();  // no block ends while another reads its memory
}

}  // namespace
