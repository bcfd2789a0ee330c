// Producer warps of the cluster kernel.
#pragma once

#include "cluster_work.cuh"

namespace {

// Iterates over the k-blocks of all work tiles of this CTA, several k-blocks at a time.
template <int BLOCK_M, bool SPLIT>
struct Cursor {
    int index, blocks, left = 0, k_block = 0, column = 0;

    // Starts at k-block number `skip` of the CTA's work.
    __device__ __forceinline__ Cursor(const Problem& problem, int skip)
        : index(static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x)), blocks(column_blocks<BLOCK_M>(problem)) {
        advance(problem, skip);
    }

    __device__ __forceinline__ bool ended(const Problem& problem) const {
        return index >= problem.cta_tile_count * blocks;
    }

    __device__ __forceinline__ void advance(const Problem& problem, int k_blocks) {
        while (k_blocks >= left) {
            k_blocks -= left;
            index += static_cast<int>(gridDim.x);
            if (ended(problem)) return;
            const WorkTile<BLOCK_M> work_tile(problem, index, blocks);
            const Range<SPLIT> range(problem, work_tile.cta_tile);
            k_block = range.first, left = range.count;
            column = work_tile.column;
        }
        k_block += k_blocks, left -= k_blocks;
    }
};

// The producer warps form PRODUCER_GROUPS groups of GROUP_WARPS, which fill pipeline stages in turn. Issuing the copies
// takes as long as the copies themselves, so the groups work on several stages in parallel.
// A k-block's list of rows goes through shared memory too. Its copy is issued after the rows of an earlier k-block,
// early enough that it has landed once the slot that the producer waits for has been consumed.
template <typename T, int BLOCK_M, int PRODUCER_GROUPS, int GROUP_WARPS, bool SPLIT>
struct Producer {
    static constexpr int X_BYTES = BLOCK_M * ROW_BYTES;
    static constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    static constexpr int CHUNKS = BLOCK_M / 8;         // 16-byte chunks per row
    static constexpr int ROWS_AT_ONCE = 32 / CHUNKS;   // rows that a warp copies at once
    static constexpr int WARP_ROWS = STAGE_ROWS / GROUP_WARPS;
    static constexpr int LANE_ROWS = WARP_ROWS / ROWS_AT_ONCE;  // consecutive list entries per lane
    static constexpr int LIST_WORDS = WARP_ROWS + K_BLOCK_WORDS - STAGE_ROWS;
    static constexpr int MOST_LISTS = (MOST_STAGES + PRODUCER_GROUPS - 1) / PRODUCER_GROUPS + 1;  // lists per warp
    using Lists = int[PRODUCER_GROUPS * GROUP_WARPS * MOST_LISTS][LIST_WORDS];

    // Prefetches a k-block's list and weights into L2, for CTA tiles with equally many k-blocks. It needs no data from
    // memory itself.
    __device__ __forceinline__ static void prefetch_k_block(const Problem& problem, int k_block, bool leads) {
        const int* list = problem.k_blocks + static_cast<int64_t>(k_block) * K_BLOCK_WORDS;
        if (threadIdx.x % 32 < (K_BLOCK_WORDS + 31) / 32) prefetch_line(list + threadIdx.x % 32 * 32);
        if (!leads || problem.prefetch == 0) return;
        const int cta_tile = k_block / problem.k_blocks_of_each, first = k_block % problem.k_blocks_of_each * STAGE_MMA_TILES;
        const uint32_t bytes = min(STAGE_MMA_TILES, problem.prefetch - first) * MMA_TILE_BYTES;
        for (int half = 0; half < 2; ++half) {
            const int64_t mma_tile = static_cast<int64_t>(cta_tile * 2 + half) * problem.prefetch + first;
            prefetch_bulk(problem.panels + mma_tile * MMA_TILE_BYTES, bytes);
        }
    }

    __device__ __forceinline__ static void run(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                               uint32_t slot_uses, Lists& all_lists) {
        const int lane = threadIdx.x % 32, warp = static_cast<int>(warp_uniform(threadIdx.x / 32)) - CONSUMERS / 32;
        const int producer_group = warp / GROUP_WARPS, first_row = warp % GROUP_WARPS * WARP_ROWS;
        const int chunk = lane % CHUNKS, lane_row = lane / CHUNKS * LANE_ROWS;
        const bool leads = warp % GROUP_WARPS == 0 && lane == 0;
        const int depth = (problem.stages + PRODUCER_GROUPS - 1) / PRODUCER_GROUPS + 1;  // list buffers that this warp uses
        int(*lists)[LIST_WORDS] = all_lists + warp * MOST_LISTS;
        const int word = lane < WARP_ROWS / 4 ? first_row + lane * 4 : STAGE_ROWS;
        const uint32_t word_target = shared_address(lists[0] + min(lane * 4, WARP_ROWS));
        const auto fetch_list = [&](int turn, int k_block) {
            if (lane <= WARP_ROWS / 4)
                copy_16_bytes(word_target + turn * LIST_WORDS * 4, problem.k_blocks + static_cast<int64_t>(k_block) * K_BLOCK_WORDS + word,
                              16);
        };
        uint32_t offsets[8];  // the swizzle depends on the row modulo 8
#pragma unroll
        for (int i = 0; i < 8; ++i)
            offsets[i] = kept(chunk / 8 * PANEL_BYTES + (first_row + lane_row + i) * ROW_BYTES + ((chunk % 8) ^ i) * 16);

        if (problem.k_blocks_of_each == 0) {  // the cursor needs to read cta_tiles
            const WorkTile<BLOCK_M> first(problem, static_cast<int>(blockIdx.x), column_blocks<BLOCK_M>(problem));
            prefetch_line(problem.cta_tiles + first.cta_tile);
            pdl_wait();
        }
        Cursor<BLOCK_M, SPLIT> cursor(problem, producer_group), ahead = cursor;
        if (problem.k_blocks_of_each != 0 && problem.prefetch >= 0) {
            for (int turn = 0; turn < depth && !ahead.ended(problem); ++turn, ahead.advance(problem, PRODUCER_GROUPS))
                prefetch_k_block(problem, ahead.k_block, leads);
            ahead = cursor;
        }
        pdl_wait();
        for (int turn = 0; turn < depth && !ahead.ended(problem); ++turn, ahead.advance(problem, PRODUCER_GROUPS))
            fetch_list(turn, ahead.k_block);
        wait_for_own_copies();
        __syncwarp();

        int slot = producer_group, turn = 0;
        uint32_t phase = 0;
        for (; !cursor.ended(problem); cursor.advance(problem, PRODUCER_GROUPS)) {
            while (slot >= problem.stages) slot -= problem.stages, phase ^= 1;
            const int column = cursor.column + chunk * 8;
            const uint32_t wanted = column < problem.m ? 16 : 0;
            const char* x = kept(static_cast<const char*>(problem.x) + (wanted ? column : 0) * static_cast<int>(sizeof(T)));
            const uint32_t base = stages + slot * STAGE_BYTES, ready = full + 8 * slot;
            const int* list = lists[turn];
            barrier_wait(empty + 8 * slot, phase ^ 1);  // by now the list has landed too
            const int4 use = *reinterpret_cast<const int4*>(list + WARP_ROWS);
            const uint32_t uses = warp_uniform(use.x), begin_0 = warp_uniform(use.y), begin_1 = warp_uniform(use.z);
            const uint32_t bytes_0 = __popc(uses & 15) * MMA_TILE_BYTES, bytes_1 = __popc(uses & 240) * MMA_TILE_BYTES;
            const uint8_t* panel_0 = problem.panels + static_cast<int64_t>(begin_0) * MMA_TILE_BYTES;
            const uint8_t* panel_1 = problem.panels + static_cast<int64_t>(begin_1) * MMA_TILE_BYTES;
#pragma unroll
            for (int atom = 0; atom < LANE_ROWS / 8; ++atom) {
                int rows[8];
                *reinterpret_cast<int4*>(rows) = *reinterpret_cast<const int4*>(list + lane_row + atom * 8);
                *reinterpret_cast<int4*>(rows + 4) = *reinterpret_cast<const int4*>(list + lane_row + atom * 8 + 4);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    // a row of -1 is filled with zeros, not read
                    copy_16_bytes(base + offsets[i] + atom * 8 * ROW_BYTES, row_address(x, rows[i], problem.x_stride),
                                  rows[i] >= 0 ? wanted : 0);
                }
            }
            if (leads) {
                store_word(slot_uses + 4 * slot, uses | (cursor.left == 1 ? LAST : 0));
                barrier_arrive_expect(ready, bytes_0 + bytes_1);
                if (bytes_0) copy_bulk(base + X_BYTES, panel_0, bytes_0, ready);
                if (bytes_1) copy_bulk(base + X_BYTES + PANEL_BYTES, panel_1, bytes_1, ready);
            }
            barrier_arrive_after_copies(ready);
            __syncwarp();  // all lanes have read the list before it is overwritten
            if (!ahead.ended(problem)) {
                fetch_list(turn, ahead.k_block);
                ahead.advance(problem, PRODUCER_GROUPS);
            }
            slot += PRODUCER_GROUPS;
            if (++turn == depth) turn = 0;
        }
    }
};

}  // namespace
