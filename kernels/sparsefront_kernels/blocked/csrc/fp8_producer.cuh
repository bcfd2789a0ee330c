// The warps that load, of the fp8 kernel: one lane starts the copy engine's copies; where k-blocks have scales of their own, a second
// warp brings those.
#pragma once

#include "fp8_work.cuh"

namespace {

// Starts the copies of a k-block. Of the weights, each block of a cluster brings an equal part to all of them.
template <typename S>
__device__ __forceinline__ void load_k_block(const Problem& problem, const int2& k_block, int row, int rank, uint32_t shared, int slot) {
    const uint32_t uses = k_block.y & 3, bytes = uses == 3 ? 2 * PANEL_BYTES : PANEL_BYTES;
    const uint32_t ready = shared + S::FULL + 8 * slot, stage = shared + slot * S::STAGE_BYTES;
    store_word(shared + S::WORDS + 4 * slot, uses);
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

// Four bytes, or zeros.
__device__ __forceinline__ void copy_4_bytes(uint32_t target, const void* source, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(exists ? 4 : 0) : "memory");
}

// Starts to load the scales of a k-block, one of each row.
template <typename S>
__device__ __forceinline__ void load_scales(const Problem& problem, int k_block, int first_row, uint32_t shared, int slot) {
    const float* scales = problem.x_scales + k_block;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < S::ROWS; i += 32) {
        const int row = first_row + i;
        const bool exists = row < problem.m;
        copy_4_bytes(shared + S::SCALES + slot * S::SCALE_BYTES + i * 4, scales + (exists ? static_cast<int64_t>(row) * problem.x_groups : 0),
                     exists);
    }
    barrier_arrive_after_copies(shared + S::FULL + 8 * slot);
}

// SCALES: whether this warp brings those, or all else.
template <bool SPLIT, bool GROUPED, bool SCALES>
__device__ __forceinline__ void produce(const Problem& problem, int rank, uint32_t shared) {
    using S = Shape<SPLIT, GROUPED>;
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
                barrier_wait(shared + S::EMPTY + 8 * ring.slot, ring.phase ^ 1);
                if constexpr (SCALES) {
                    load_scales<S>(problem, k_block.x, row, shared, ring.slot);
                } else if (lane == 0) {
                    load_k_block<S>(problem, k_block, row, rank, shared, ring.slot);
                }
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
