// Accumulators of a CTA: kept in shared memory between passes over K and for the reduction across the cluster, then
// stored to Y.
#pragma once

#include "thread_per_row_list.cuh"
#include "streams.cuh"

namespace thread_per_row {

constexpr int MOST_SPLITS = 8;  // CTAs per cluster

struct Outputs {
    void* y;           // [n, m], contiguous
    const void* bias;
    int bias_type;
    const int* order;  // [groups]: output group of each list; null: identity
    int m, groups;
};

// Stores a unit's rows of one output, with the bias.
template <typename T>
__device__ __forceinline__ void write_rows(const Outputs& outputs, int output, int row, const float (&sums)[UNIT_ROWS<T>]) {
    const int m = outputs.m;
    if (row >= m) return;
    const float bias = numbers::of_type(outputs.bias, outputs.bias_type, output);
    T* target = static_cast<T*>(outputs.y) + static_cast<long long>(output) * m + row;
    alignas(16) T rows[UNIT_ROWS<T>];
#pragma unroll
    for (int i = 0; i < UNIT_ROWS<T>; ++i) rows[i] = numbers::rounded<T>(sums[i] + bias);
    if (m % UNIT_ROWS<T> == 0) {
        *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(rows);
    } else {
#pragma unroll
        for (int i = 0; i < UNIT_ROWS<T>; ++i) {
            if (row + i < m) target[i] = rows[i];
        }
    }
}

__device__ __forceinline__ int stored_group(const Outputs& outputs, int position) {
    return outputs.order == nullptr ? position : outputs.order[position];
}

template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void write_group(const Outputs& outputs, int position, int first_row, const Sums<T, BLOCK, LANE_UNITS>& sums) {
    const int group = stored_group(outputs, position);
#pragma unroll
    for (int output = 0; output < BLOCK; ++output) {
#pragma unroll
        for (int i = 0; i < LANE_UNITS; ++i)
            write_rows<T>(outputs, group * BLOCK + output, first_row + unit_of_lane<LANE_UNITS>(i) * UNIT_ROWS<T>, sums[output][i]);
    }
}

// Where shared memory keeps four of a lane's sums of a group, in [groups of the CTA, BLOCK, ROWS] floats. Until the
// cluster reduction, only this lane accesses them.
template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ float4* kept_sums(float* sums_of_block, int group, int output, int unit, int row) {
    return reinterpret_cast<float4*>(sums_of_block + (group * BLOCK + output) * ROWS<T> + unit_of_lane<LANE_UNITS>(unit) * UNIT_ROWS<T> + row);
}

// If `add`, adds the kept sums of the group to `sums`; if `keep`, keeps the result because more passes or a cluster
// reduction follow.
template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void add_and_keep(Sums<T, BLOCK, LANE_UNITS>& sums, float* sums_of_block, int group, bool add, bool keep) {
#pragma unroll
    for (int output = 0; output < BLOCK; ++output) {
#pragma unroll
        for (int unit = 0; unit < LANE_UNITS; ++unit) {
#pragma unroll
            for (int row = 0; row < UNIT_ROWS<T>; row += 4) {
                float4* const kept = kept_sums<T, BLOCK, LANE_UNITS>(sums_of_block, group, output, unit, row);
                float* const own = sums[output][unit] + row;
                if (add) own[0] += kept->x, own[1] += kept->y, own[2] += kept->z, own[3] += kept->w;
                if (keep) *kept = make_float4(own[0], own[1], own[2], own[3]);
            }
        }
    }
}

// Cluster reduction: each CTA adds up and stores its share of the lines of `groups` groups of outputs, adding the CTAs
// in rank order.
template <typename T, int BLOCK>
__device__ __forceinline__ void add_up_and_write(const Outputs& outputs, float* sums_of_block, int first_group, int groups, int first_row,
                                                 int rank, int splits) {
    const int row = threadIdx.x % UNITS * UNIT_ROWS<T>;
    const int lines = min(groups, outputs.groups - first_group) * BLOCK;  // number of outputs
    for (int line = threadIdx.x / UNITS * splits + rank; line < lines; line += blockDim.x / UNITS * splits) {
        const uint32_t kept = shared_address(sums_of_block + line * ROWS<T> + row);
        float sums[UNIT_ROWS<T>] = {};
#pragma unroll
        for (int i = 0; i < UNIT_ROWS<T>; i += 4) {
            float4 parts[MOST_SPLITS];  // issue all loads before waiting for the first
#pragma unroll
            for (int block = 0; block < MOST_SPLITS; ++block) parts[block] = block < splits ? load_from_cluster(kept + i * 4, block) : float4{};
#pragma unroll
            for (int block = 0; block < MOST_SPLITS; ++block)
                sums[i] += parts[block].x, sums[i + 1] += parts[block].y, sums[i + 2] += parts[block].z, sums[i + 3] += parts[block].w;
        }
        write_rows<T>(outputs, stored_group(outputs, first_group + line / BLOCK) * BLOCK + line % BLOCK, first_row + row, sums);
    }
}

}  // namespace thread_per_row
