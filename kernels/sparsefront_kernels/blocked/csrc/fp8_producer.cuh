// The warp that loads, of the fp8 kernel: all copies are the copy engine's, started by one lane.
#pragma once

#include "fp8_work.cuh"

namespace {

// Starts the copies of a k-block. Of the weights, each block of a cluster brings an equal part to all of them.
template <bool SPLIT>
__device__ __forceinline__ void load_k_block(const Problem& problem, const int2& k_block, int row, int rank, uint32_t stage,
                                             uint32_t ready, uint32_t word) {
    using S = Shape<SPLIT>;
    const uint32_t uses = k_block.y & 3, bytes = uses == 3 ? 2 * PANEL_BYTES : PANEL_BYTES;
    store_word(word, k_block.x << 2 | uses);
    barrier_arrive_expect(ready, S::X_BYTES + bytes);
    copy_box(stage, &problem.x, k_block.x * (K_BLOCK / 2), row, ready);
    const uint32_t part = bytes / problem.cluster, begin = problem.cluster == 1 ? 0 : part * rank;
    const uint8_t* panels = problem.panels + static_cast<int64_t>(k_block.y >> 2) * PANEL_BYTES + begin;
    const uint32_t target = stage + S::X_BYTES + (uses == 2 ? PANEL_BYTES : 0) + begin;
    if (problem.cluster == 1) {
        copy_bulk(target, panels, part, ready);
    } else {
        copy_bulk_multicast(target, panels, part, ready, (1 << problem.cluster) - 1);
    }
}

template <bool SPLIT>
__device__ __forceinline__ void produce(const Problem& problem, int rank, uint32_t shared) {
    using S = Shape<SPLIT>;
    const int lane = threadIdx.x % 32, cluster = static_cast<int>(blockIdx.x) / (problem.cluster * problem.splits);
    const int4* next = problem.work + __ldg(problem.work_begin + cluster);
    const int4* const end = problem.work + __ldg(problem.work_begin + cluster + 1);
    if (next == end) return;
    // each lane holds one of the next 32 k-blocks; those after them, and the next tile, are read ahead
    int2 ahead{};
    const auto read_ahead = [&](int first, int count) {
        if (lane < count) ahead = load_early(problem.k_blocks + first + lane);
    };
    const auto tile_of = [&](const int4& v) {
        Tile tile(v);
        if constexpr (SPLIT) tile.take_part(rank, problem.splits);
        return tile;
    };
    Tile tile = tile_of(load_early(next));
    read_ahead(tile.first, tile.k_blocks);
    Ring ring;
    while (true) {
        const bool last = ++next == end;
        const int4 next_place = last ? int4{} : load_early(next);
        const int row = tile.row + (SPLIT ? 0 : rank * S::ROWS);
        for (int done = 0; done < tile.k_blocks; done += 32) {
            const int2 held = ahead;
            const int left = tile.k_blocks - done;
            if (left > 32) {
                read_ahead(tile.first + done + 32, left - 32);
            } else if (!last) {
                const Tile after(next_place);
                read_ahead(after.first, after.k_blocks);
            }
            for (int i = 0; i < min(left, 32); ++i) {
                const int2 k_block{__shfl_sync(~0u, held.x, i), __shfl_sync(~0u, held.y, i)};
                barrier_wait(shared + EMPTY_AT + 8 * ring.slot, ring.phase ^ 1);
                if (lane == 0)
                    load_k_block<SPLIT>(problem, k_block, row, rank, shared + ring.slot * S::STAGE_BYTES,
                                        shared + FULL_AT + 8 * ring.slot, shared + WORDS_AT + 4 * ring.slot);
                __syncwarp();
                ring.advance(S::STAGES);
            }
        }
        if (last) return;
        const Tile after(next_place);
        if (tile.k_blocks == 0) read_ahead(after.first, after.k_blocks);
        tile = after;
    }
}

}  // namespace
