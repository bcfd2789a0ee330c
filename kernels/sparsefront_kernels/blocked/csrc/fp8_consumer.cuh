// The warpgroups that multiply, of the fp8 kernel. Tensor cores add up the 128 inputs of a k-block with few bits; k-blocks are added
// up in float32, each times the scale of its rows of X where k-blocks have scales of their own (GROUPED).
#pragma once

#include "fp8_store.cuh"

namespace {

// What has been read stays behind the wait for it.
template <int COUNT>
__device__ __forceinline__ void pin(float (&acc)[COUNT]) {
#pragma unroll
    for (float& v : acc) asm volatile("" : "+f"(v)::"memory");
}

template <bool GROUPED, int COUNT>
__device__ __forceinline__ void promote(float* sums, const float (&acc)[COUNT], const float (&scales)[2]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = GROUPED ? fmaf(acc[i], scales[i / 2 % 2], sums[i]) : sums[i] + acc[i];
}

// The pipeline as a consumer warpgroup sees it.
struct Stages {
    uint32_t shared;
    int cluster;

    // Every block of the cluster fills the slot, since each brings weights to all.
    __device__ __forceinline__ void release(int slot) const {
        const int lane = threadIdx.x % 32;
        const uint32_t empty = shared + EMPTY_AT + 8 * slot;
        __syncwarp();
        if (cluster == 1) {
            if (lane == 0) barrier_arrive(empty);
        } else if (lane < cluster) {
            barrier_arrive_in_cluster(empty, lane);
        }
    }
};

// The scales of a thread's two rows of X.
template <bool GROUPED>
struct RowScales {
    const float* of_row[2];
    bool exists[2];

    __device__ __forceinline__ RowScales(const Problem& problem, int first_row) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const int row = first_row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + p * 8;
            exists[p] = row < problem.m;
            of_row[p] = problem.x_scales + static_cast<int64_t>(exists[p] ? row : 0) * problem.x_groups;
        }
    }

    __device__ __forceinline__ void load(int k_block, float (&scales)[2]) const {
#pragma unroll
        for (int p = 0; p < 2; ++p) scales[p] = load_float_early(of_row[p] + (GROUPED ? k_block : 0));
    }
};

// Adds a stage's products to the sums, [two halves of 64 outputs][32].
template <bool GROUPED, bool HALVES, bool SPLIT>
__device__ __forceinline__ void add_stage(const Stages& s, int slot, int group, const RowScales<GROUPED>& rows, float (&sums)[64]) {
    using S = Shape<SPLIT>;
    const uint32_t stage = s.shared + slot * S::STAGE_BYTES, x = stage + (SPLIT ? 0 : group * GROUP_BYTES);
    const uint32_t panels = stage + S::X_BYTES;
    const uint32_t word = GROUPED || HALVES ? warp_uniform(load_word(s.shared + WORDS_AT + 4 * slot)) : 3;
    float scales[2] = {1.0f, 1.0f};
    if constexpr (GROUPED) rows.load(word >> 2, scales);
    if (!HALVES || (word & 3) == 3) {
        float acc[64];
        multiply_k_block<128>(acc, x, panels);
        wgmma_wait<0>();
        pin(acc);
        s.release(slot);
        promote<GROUPED>(sums, acc, scales);
    } else {
        float acc[32];
        multiply_k_block<64>(acc, x, panels + ((word & 3) == 2 ? PANEL_BYTES : 0));
        wgmma_wait<0>();
        pin(acc);
        s.release(slot);
        if ((word & 3) == 1) {
            promote<GROUPED>(sums, acc, scales);
        } else {
            promote<GROUPED>(sums + 32, acc, scales);
        }
    }
}

template <typename T, bool GROUPED, bool HALVES>
__device__ __forceinline__ void consume(const Problem& problem, int rank, uint32_t shared) {
    using S = Shape<false>;
    const int group = warp_uniform(threadIdx.x / 128), cluster = static_cast<int>(blockIdx.x) / problem.cluster;
    const Stages s{shared, problem.cluster};
    Store<T> store(shared, group);
    const int4* next = problem.work + __ldg(problem.work_begin + cluster);
    const int4* const end = problem.work + __ldg(problem.work_begin + cluster + 1);
    int4 ahead = next < end ? load_early(next) : int4{};
    Ring ring;
    for (; next < end; ++next) {
        const Tile tile(ahead);
        if (next + 1 < end) ahead = load_early(next + 1);
        const int row = tile.row + rank * S::ROWS + group * GROUP_ROWS;
        store.begin(problem, tile, row);
        const RowScales<GROUPED> rows(problem, row);
        float scales[2] = {1.0f, 1.0f};
        if constexpr (!GROUPED) rows.load(0, scales);
        float sums[64] = {};
        for (int k_block = 0; k_block < tile.k_blocks; ++k_block) {
            barrier_wait(shared + FULL_AT + 8 * ring.slot, ring.phase);
            add_stage<GROUPED, HALVES, false>(s, ring.slot, group, rows, sums);
            ring.advance(S::STAGES);
        }
        store.end(problem, tile, row, sums, scales);
    }
    store.finish();
}

}  // namespace
