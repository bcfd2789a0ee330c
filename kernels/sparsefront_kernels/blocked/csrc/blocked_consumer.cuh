// Consumer warpgroups of the blocked kernel.
#pragma once

#include "blocked_sums.cuh"

namespace {

// Pipeline stages and their mbarriers, as a consumer warpgroup uses them.
struct Stages {
    uint32_t first, full, empty, slot_uses;
    uint32_t half;
    int cluster;
    Ring ring;

    // Releases a slot to the producers of all CTAs of the cluster, since each multicasts weights into it.
    __device__ __forceinline__ void release(int slot) const {
        const int lane = threadIdx.x % 32;
        if (cluster == 1) {
            if (lane == 0) barrier_arrive(empty + 8 * slot);
        } else if (lane < cluster) {
            barrier_arrive_in_cluster(empty + 8 * slot, lane);
        }
    }
};

// acc (+)= the products of one pipeline stage: WIDTH columns x 64 inputs x this half's 64 outputs.
template <typename T, typename X, Weights WEIGHTS, int WIDTH>
__device__ __forceinline__ void multiply(float (&acc)[WIDTH / 2], uint32_t stage, uint32_t half, int add) {
    const uint32_t panel = stage + X_BYTES + half * PANEL_BYTES<WEIGHTS>;
    if constexpr (WEIGHTS == Weights::ALL) {
        wgmma_fence();
#pragma unroll
        for (int sixteen = 0; sixteen < K_BLOCK / 16; ++sixteen)
            wgmma<T, WIDTH, K_MAJOR, X::ORDER>(acc, k_major_descriptor<128>(panel + sixteen * 32), X::descriptor(stage, sixteen),
                                               sixteen == 0 ? add : 1);
    } else {
        const uint32_t places = load_word(panel + HALVED_VALUE_BYTES + threadIdx.x % 128 * 4);
        __syncwarp();  // all lanes have read their metadata before one lane releases the stage
        wgmma_fence();
        sparse_wgmma<T, WIDTH, 0, X::ORDER>(acc, k_major_descriptor<64>(panel), X::descriptor(stage, 0), places, add);
        sparse_wgmma<T, WIDTH, 1, X::ORDER>(acc, k_major_descriptor<64>(panel + 32), X::descriptor(stage, 2), places, 1);
    }
    wgmma_commit();
}

// Accumulates the k-blocks of a work tile that this half uses. Returns whether there were any; if not, acc is
// uninitialized.
template <typename T, typename X, Weights WEIGHTS, int WIDTH>
__device__ __forceinline__ int add_up(Stages& s, int k_blocks, float (&acc)[WIDTH / 2]) {
    int add = 0, previous = -1;
    for (int k_block = 0; k_block < k_blocks; ++k_block) {
        barrier_wait(s.full + 8 * s.ring.slot, s.ring.phase);
        const uint32_t uses = warp_uniform(load_word(s.slot_uses + 4 * s.ring.slot));
        __syncwarp();  // all lanes have read it before one lane releases the slot
        if (uses >> s.half & 1) {
            multiply<T, X, WEIGHTS, WIDTH>(acc, s.first + s.ring.slot * STAGE_BYTES, s.half, add);
            wgmma_wait<1>();  // the wgmma of the previous stage has finished reading it
            if (previous >= 0) s.release(previous);
            previous = s.ring.slot, add = 1;
        } else {
            // release the previous slot now, not after the next product: the producer may need it to load that
            // product's stage
            wgmma_wait<0>();
            if (previous >= 0) s.release(previous);
            previous = -1;
            s.release(s.ring.slot);
        }
        s.ring.advance(STAGES);
    }
    wgmma_wait<0>();
    fence_sums(acc);
    if (previous >= 0) s.release(previous);
    return add;
}

// Computes a work tile: all of its k-blocks, then stores Y; or a split-K part of them, then stores partial sums to its
// units.
template <typename T, typename X, Weights WEIGHTS, int WIDTH>
__device__ __forceinline__ void compute(const Problem& problem, Stages& s, Quarters& quarters, const WorkTile& tile, int rank,
                                        float (&sums)[MOST_COLUMNS / 2], const uint32_t (&stored_bias)[2], int first_output, int unit) {
    auto& acc = reinterpret_cast<float(&)[WIDTH / 2]>(sums);
    const int column = first_column(problem, tile, rank), groups = groups_of(problem, tile, column);
    if (unit < 0) load_first_residuals(problem, quarters, column, groups, first_output);
    const int add = add_up<T, X, WEIGHTS, WIDTH>(s, tile.k_blocks, acc);
    if (unit >= 0) return leave_sums<WIDTH>(problem.sums, unit + rank * (WIDTH / GROUP), groups, acc, add);
    const float bias[2] = {bias_of(problem.epilogue, stored_bias[0]), bias_of(problem.epilogue, stored_bias[1])};
    store<T, WIDTH>(problem, quarters, acc, bias, column, groups, first_output, add);
}

template <typename T, typename X, Weights WEIGHTS>
__device__ __forceinline__ void consume(const Problem& problem, int rank, uint32_t stages, uint32_t full, uint32_t empty,
                                        uint32_t slot_uses, uint32_t landed) {
    Stages s{stages, full, empty, slot_uses, warp_uniform(threadIdx.x / 128), problem.cluster};
    Quarters quarters{stages + STAGES * STAGE_BYTES + s.half * QUARTER_BUFFERS * QUARTER_BYTES,
                      landed + s.half * QUARTER_BUFFERS * 8, 1 + s.half, threadIdx.x % 128 == 0};
    // what a tile needs is loaded while earlier tiles are computed
    int4 ahead[2];
    ahead[0] = ahead[1] = load_early(problem.first_work + cluster_index(problem));
    const int4* next = problem.work + __ldg(problem.work_begin + cluster_index(problem));
    const int4* const end = problem.work + __ldg(problem.work_begin + cluster_index(problem) + 1);
    const int own_output = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;  // this thread's first output within its half
    float acc[MOST_COLUMNS / 2];
    if (next + 1 < end) ahead[1] = load_early(next + 1);
    int next_output = load_early(problem.outputs + 2 * ahead[0].x + s.half);
    const int* next_unit = problem.units == nullptr ? nullptr : problem.units + (next - problem.work);
    for (; next < end; ++next) {
        const WorkTile tile(ahead[0]);
        const int first_output = static_cast<int>(warp_uniform(next_output)), unit = next_unit == nullptr ? -1 : __ldg(next_unit++);
        ahead[0] = ahead[1];
        next_output = load_early(problem.outputs + 2 * ahead[0].x + s.half);
        if (next + 2 < end) ahead[1] = load_early(next + 2);
        uint32_t bias[2];
#pragma unroll
        for (int p = 0; p < 2; ++p)
            bias[p] = load_bias(problem.epilogue, first_output < 0 ? -1 : first_output + own_output + p * 8);
        switch (tile.width) {
            case 256: compute<T, X, WEIGHTS, 256>(problem, s, quarters, tile, rank, acc, bias, first_output, unit); break;
            case 192: compute<T, X, WEIGHTS, 192>(problem, s, quarters, tile, rank, acc, bias, first_output, unit); break;
            case 128: compute<T, X, WEIGHTS, 128>(problem, s, quarters, tile, rank, acc, bias, first_output, unit); break;
            default: compute<T, X, WEIGHTS, 64>(problem, s, quarters, tile, rank, acc, bias, first_output, unit); break;
        }
    }
    if (quarters.leads) wait_for_reads_of_stores<0>();  // the end of the grid completes the remaining stores
    __syncwarp();
}

}  // namespace
