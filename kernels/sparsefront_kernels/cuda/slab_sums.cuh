// Sums of a block's outputs: between its passes over K and between the blocks that share K in shared memory, at last in Y.
#pragma once

#include "slab_list.cuh"
#include "streams.cuh"

namespace slabs {

struct Outputs {
    void* y;           // [n, m] contiguous
    const void* bias;
    int bias_type;
    const int* order;  // [groups]: the group that a list is of; null: in order
    int m, groups;
};

// Rows of an output, as many as a lane has, with the bias.
template <typename T>
__device__ __forceinline__ void write_rows(const Outputs& outputs, int output, int row, const float (&sums)[LANE_ROWS<T>]) {
    const int m = outputs.m;
    if (row >= m) return;
    const float bias = numbers::of_type(outputs.bias, outputs.bias_type, output);
    T* target = static_cast<T*>(outputs.y) + static_cast<long long>(output) * m + row;
    alignas(16) T rows[LANE_ROWS<T>];
#pragma unroll
    for (int i = 0; i < LANE_ROWS<T>; ++i) rows[i] = numbers::rounded<T>(sums[i] + bias);
    if (m % LANE_ROWS<T> == 0) {
        *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(rows);
    } else {
#pragma unroll
        for (int i = 0; i < LANE_ROWS<T>; ++i) {
            if (row + i < m) target[i] = rows[i];
        }
    }
}

template <typename T, int BLOCK>
__device__ __forceinline__ void write_group(const Outputs& outputs, int position, int row, const Sums<T, BLOCK>& sums) {
    const int group = outputs.order == nullptr ? position : outputs.order[position];
#pragma unroll
    for (int output = 0; output < BLOCK; ++output) write_rows<T>(outputs, group * BLOCK + output, row, sums[output]);
}

// Where the lane's sums of a group are kept: [groups of the block, BLOCK, ROWS] floats. Only this lane reads and writes them.
template <typename T, int BLOCK>
__device__ __forceinline__ float* kept_sums(float* sums_of_block, int group, int lane_of_group) {
    return sums_of_block + group * BLOCK * ROWS<T> + lane_of_group * LANE_ROWS<T>;
}

template <typename T, int BLOCK>
__device__ __forceinline__ void keep(float* kept, const Sums<T, BLOCK>& sums) {
#pragma unroll
    for (int output = 0; output < BLOCK; ++output) {
#pragma unroll
        for (int row = 0; row < LANE_ROWS<T>; row += 4)
            *reinterpret_cast<float4*>(kept + output * ROWS<T> + row) = *reinterpret_cast<const float4*>(sums[output] + row);
    }
}

template <typename T, int BLOCK>
__device__ __forceinline__ void add_kept(Sums<T, BLOCK>& sums, const float* kept) {
#pragma unroll
    for (int output = 0; output < BLOCK; ++output) {
#pragma unroll
        for (int row = 0; row < LANE_ROWS<T>; ++row) sums[output][row] += kept[output * ROWS<T> + row];
    }
}

// The blocks of a cluster each add up and write their share of `groups` groups of outputs, in the order of the blocks.
template <typename T, int BLOCK>
__device__ __forceinline__ void add_up_and_write(const Outputs& outputs, float* sums_of_block, int first_group, int groups, int first_row,
                                                 int rank, int splits) {
    const int lane_of_group = threadIdx.x % UNITS, row = first_row + lane_of_group * LANE_ROWS<T>;
    const int lines = min(groups, outputs.groups - first_group) * BLOCK;  // outputs
    for (int line = threadIdx.x / UNITS * splits + rank; line < lines; line += blockDim.x / UNITS * splits) {
        const uint32_t kept = shared_address(sums_of_block + line * ROWS<T> + lane_of_group * LANE_ROWS<T>);
        alignas(16) float sums[LANE_ROWS<T>] = {};
        for (int block = 0; block < splits; ++block) {
#pragma unroll
            for (int i = 0; i < LANE_ROWS<T>; i += 4) {
                const float4 part = load_from_cluster(kept + i * 4, block);
                sums[i] += part.x, sums[i + 1] += part.y, sums[i + 2] += part.z, sums[i + 3] += part.w;
            }
        }
        const int position = first_group + line / BLOCK;
        const int group = outputs.order == nullptr ? position : outputs.order[position];
        write_rows<T>(outputs, group * BLOCK + line % BLOCK, row, sums);
    }
}

}  // namespace slabs
