// Producer warp of the blocked kernel: one lane issues all TMA copies.
#pragma once

#include "blocked_work.cuh"

namespace {

// Image coordinates of the filter's first tap, for the first output pixel of each group of 64 rows.
struct Pixels {
    int w[GROUPS], h[GROUPS], n[GROUPS];

    // Lane i computes those of group i % GROUPS; shuffles broadcast them.
    __device__ __forceinline__ void find(const Convolution& convolution, int column) {
        const int pixel = column + static_cast<int>(threadIdx.x) % GROUPS * GROUP, across = pixel % convolution.out_w;
        const int row = pixel / convolution.out_w, down = row % convolution.out_h;
        const int own_w = across * convolution.stride_w - convolution.padding_w;
        const int own_h = down * convolution.stride_h - convolution.padding_h, own_n = row / convolution.out_h;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            w[group] = __shfl_sync(~0u, own_w, group), h[group] = __shfl_sync(~0u, own_h, group);
            n[group] = __shfl_sync(~0u, own_n, group);
        }
    }
};

template <int INPUTS, Source SOURCE, Weights WEIGHTS>
struct Producer {
    using Stage = XStage<INPUTS, SOURCE>;
    static constexpr uint32_t PANEL = PANEL_BYTES<WEIGHTS>;
    static constexpr int PREFETCHED = 8;  // k-blocks of the first tile whose weights are prefetched
    static_assert(SOURCE != Source::IMAGES || INPUTS == K_BLOCK);  // so that there are no zero-filled boxes

    // The part of a k-block's weights that this CTA loads for its cluster.
    struct Part {
        const uint8_t* source;
        uint32_t begin, bytes;

        __device__ __forceinline__ Part(const Problem& problem, const KBlock<INPUTS>& k_block, int rank) {
            bytes = ((k_block.place & 3) == 3 ? 2 * PANEL : PANEL) / problem.cluster;
            begin = problem.cluster == 1 ? 0 : bytes * rank;
            source = problem.panels + static_cast<int64_t>(k_block.place >> 2) * PANEL + begin;
        }
    };

    // Issues the copies of a k-block. Each CTA of a cluster multicasts an equal part of the weights to all of them.
    __device__ __forceinline__ static void load(const Problem& problem, const KBlock<INPUTS>& k_block, int column, const Pixels& pixels,
                                                int groups, int rank, uint32_t stage, uint32_t ready, uint32_t use_of_slot) {
        const uint32_t use = k_block.place & 3, bytes = use == 3 ? 2 * PANEL : PANEL;
        store_word(use_of_slot, use);
        barrier_arrive_expect(ready, groups * GROUP_BYTES + bytes);
        const Part part(problem, k_block, rank);
        const uint32_t target = stage + X_BYTES + (use == 2 ? PANEL : 0) + part.begin;
        if (problem.cluster == 1) {
            copy_bulk(target, part.source, part.bytes, ready);
        } else {
            copy_bulk_multicast(target, part.source, part.bytes, ready, (1 << problem.cluster) - 1);
        }
        if constexpr (SOURCE == Source::IMAGES) {
            load_pixels(problem, k_block.input[0], pixels, groups, stage, ready);
        } else {
            for (int group = 0; group < groups; ++group) {
                const int row = column + group * GROUP;
#pragma unroll
                for (int box = 0; box < KBlock<INPUTS>::BOXES; ++box) {
                    const int input = k_block.input[box];
                    copy_box(stage + Stage::box(group, box), &problem.x, Stage::BY_INPUT ? row : input, Stage::BY_INPUT ? input : row,
                             ready);
                }
            }
        }
    }

    __device__ __forceinline__ static void load_pixels(const Problem& problem, int input, const Pixels& pixels, int groups, uint32_t stage,
                                                       uint32_t ready) {
        const Convolution& convolution = problem.convolution;
        const int tap = input / convolution.channels, channel = input % convolution.channels;
        const uint16_t across = tap % convolution.filter_w * convolution.dilation_w;
        const uint16_t down = tap / convolution.filter_w * convolution.dilation_h;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
            if (group < groups)
                copy_pixels(stage + Stage::box(group, 0), &problem.x, channel, pixels.w[group], pixels.h[group], pixels.n[group], across,
                            down, ready);
    }

    __device__ __forceinline__ static void run(const Problem& problem, int rank, uint32_t stages, uint32_t full, uint32_t empty,
                                               uint32_t slot_uses) {
        const int lane = threadIdx.x % 32;
        const int4 first = load_early(problem.first_work + cluster_index(problem));
        const int4* next = problem.work + __ldg(problem.work_begin + cluster_index(problem));
        const int4* const end = problem.work + __ldg(problem.work_begin + cluster_index(problem) + 1);
        // each lane holds one of the next 32 k-blocks; those after them, and those of the next tile, are read ahead
        KBlock<INPUTS> ahead{};
        const auto read_ahead = [&](int first, int count) {
            if (lane < count) ahead.load(problem.k_blocks, first + lane);
        };
        WorkTile tile(first);
        read_ahead(tile.first, tile.k_blocks);
        // before the PDL wait: read tables, which are constant, and prefetch weights into L2, while preceding kernels
        // may still run
        if (lane < min(tile.k_blocks, PREFETCHED)) {
            const Part part(problem, ahead, rank);
            prefetch_bulk(part.source, part.bytes);
        }
        pdl_wait();
        Ring ring;
        while (tile.k_blocks > 0) {
            int4 next_place{};
            if (++next < end) next_place = load_early(next);
            const int column = first_column(problem, tile, rank), groups = groups_of(problem, tile, column);
            Pixels pixels;
            if constexpr (SOURCE == Source::IMAGES) pixels.find(problem.convolution, column);
            for (int done = 0; done < tile.k_blocks; done += 32) {
                const KBlock<INPUTS> held = ahead;
                const int left = tile.k_blocks - done;
                if (left > 32) {
                    read_ahead(tile.first + done + 32, left - 32);
                } else {
                    const WorkTile after(next_place);
                    read_ahead(after.first, after.k_blocks);  // reads nothing if this tile is the last: then k_blocks is 0
                }
                for (int i = 0; i < min(left, 32); ++i) {
                    const KBlock<INPUTS> k_block = held.of(i);
                    barrier_wait(empty + 8 * ring.slot, ring.phase ^ 1);
                    if (lane == 0)
                        load(problem, k_block, column, pixels, groups, rank, stages + ring.slot * STAGE_BYTES, full + 8 * ring.slot,
                             slot_uses + 4 * ring.slot);
                    __syncwarp();
                    ring.advance(STAGES);
                }
            }
            tile = WorkTile(next_place);
        }
    }
};

}  // namespace
