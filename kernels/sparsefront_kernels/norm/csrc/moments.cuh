// Sums and sums of squares of columns, over lanes, warps and blocks of a cluster.
#pragma once

#include "../../cuda/hopper.cuh"

namespace column_norm {

// Of a column over some features: the sum, and the sum of squares around the mean of these features.
struct Moments {
    float sum, squares;
};

// How many features; the inverse of no features is 0.
struct Count {
    float features, inverse;
};

__device__ __forceinline__ Count counted(float features) { return {features, features > 0.0f ? 1.0f / features : 0.0f}; }

// Moments of several sets of features as one. at(i) gives those of set i, count(i) how many features it has; of_all: of all sets.
template <int SETS, typename At, typename OfSet>
__device__ __forceinline__ Moments combined(At at, OfSet count, Count of_all) {
    Moments all{0.0f, 0.0f};
#pragma unroll 4
    for (int i = 0; i < SETS; ++i) all.sum += at(i).sum;
    const float mean = all.sum * of_all.inverse;
#pragma unroll 4
    for (int i = 0; i < SETS; ++i) {
        const Moments part = at(i);
        const float away = part.sum * count(i).inverse - mean;
        all.squares += part.squares + count(i).features * away * away;
    }
    return all;
}

// Into the shared memory of another block of the cluster, at the place that `own` has here.
__device__ __forceinline__ void store_moments(const Moments* own, int rank, Moments v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address_in_cluster(shared_address(own), rank)), "f"(v.sum),
                 "f"(v.squares)
                 : "memory");
}

// Adds up over the lanes of a warp that have the same columns; all of them get it.
template <int EIGHTS, int COUNT>
__device__ __forceinline__ void add_over_rows(float (&v)[COUNT]) {
#pragma unroll
    for (int step = EIGHTS; step < 32; step *= 2)
#pragma unroll
        for (float& of_column : v) of_column += __shfl_xor_sync(~0u, of_column, step);
}

}  // namespace column_norm
