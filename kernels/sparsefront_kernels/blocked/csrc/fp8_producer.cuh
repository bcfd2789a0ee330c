// Producer warps of the fp8 kernel: one lane issues TMA copies; a second warp loads the scales if k-blocks have their own.
#pragma once

#include "fp8_work.cuh"

namespace {

// The part of a k-block's weights that a CTA multicasts to its cluster.
struct WeightPart {
    const uint8_t* source;
    uint32_t begin, bytes;

    __device__ __forceinline__ WeightPart(const Problem& problem, const int2& k_block, int rank) {
        bytes = ((k_block.y & 3) == 3 ? 2 * PANEL_BYTES : PANEL_BYTES) / problem.cluster;
        begin = problem.cluster == 1 ? 0 : bytes * rank;
        source = problem.panels + static_cast<int64_t>(k_block.y >> 2) * PANEL_BYTES + begin;
    }
};

constexpr int PREFETCHED = 8;  // k-blocks of the first tile that are prefetched

// Issues the copies of a k-block. Each CTA multicasts an equal part of the weights to its cluster.
template <typename S>
__device__ __forceinline__ void load_k_block(const Problem& problem, const int2& k_block, int row, int rank, uint32_t shared, int slot) {
    const uint32_t uses = k_block.y & 3, bytes = uses == 3 ? 2 * PANEL_BYTES : PANEL_BYTES;
    const uint32_t ready = shared + S::FULL + 8 * slot, stage = shared + slot * S::STAGE_BYTES;
    store_word(shared + S::WORDS + 4 * slot, uses);
    barrier_arrive_expect(ready, S::X_BYTES + bytes);
    copy_box(stage, &problem.x, k_block.x * (K_BLOCK / 2), row, ready);
    const WeightPart part(problem, k_block, rank);
    const uint32_t target = stage + S::X_BYTES + (uses == 2 ? PANEL_BYTES : 0) + part.begin;
    if (problem.cluster == 1) {
        copy_bulk(target, part.source, part.bytes, ready);
    } else {
        copy_bulk_multicast(target, part.source, part.bytes, ready, (1 << problem.cluster) - 1);
    }
}

// Copies four bytes, or zeros.
__device__ __forceinline__ void copy_4_bytes(uint32_t target, const void* source, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(exists ? 4 : 0) : "memory");
}

// Issues the loads of a k-block's scales, one per row.
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

// SCALES: this warp loads the scales, else everything else.
template <typename S, bool SPLIT, bool SCALES>
__device__ __forceinline__ void produce(const Problem& problem, int rank, uint32_t shared) {
    const int lane = threadIdx.x % 32, cluster = static_cast<int>(blockIdx.x) / (problem.cluster * problem.splits);
    const int4 first = load_early(problem.first_work + cluster);
    const int4* next = problem.work + __ldg(problem.work_begin + cluster);
    const int4* const end = problem.work + __ldg(problem.work_begin + cluster + 1);
    // each lane holds one of the next 32 k-blocks; those after them, and the next tile, are read ahead
    int2 ahead{};
    int ahead_count = 0;
    const auto read_ahead = [&](int first, int count) {
        ahead_count = min(count, 32);
        if (lane < count) ahead = load_early(problem.k_blocks + first + lane);
    };
    Tile tile(first);
    if constexpr (SPLIT) tile.take_part(rank, problem.splits);
    read_ahead(tile.first, tile.k_blocks);
    // before the PDL wait: read the tables, which are never written again, and prefetch weights into L2
    if (!SCALES && lane < min(tile.k_blocks, PREFETCHED)) {
        const WeightPart part(problem, ahead, rank);
        prefetch_bulk(part.source, part.bytes);
    }
    pdl_wait();
    Ring ring;
    while (true) {
        const bool last = ++next == end;
        const int4 next_place = last ? int4{} : load_early(next);
        const int row = tile.row + (SPLIT ? 0 : rank * S::ROWS);
        for (int done = 0; done < tile.k_blocks;) {
            const int2 held = ahead;
            const int count = ahead_count;
            done += count;
            if (done < tile.k_blocks) {
                read_ahead(tile.first + done, tile.k_blocks - done);
            } else if (!last) {
                const Tile after(next_place);
                read_ahead(after.first, after.k_blocks);
            }
            for (int i = 0; i < count; ++i) {
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
