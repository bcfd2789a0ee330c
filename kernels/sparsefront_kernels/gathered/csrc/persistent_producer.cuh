// The warps that load, of the persistent kernel.
#pragma once

#include "persistent_work.cuh"

namespace {

// Walks over the k-blocks of all work tiles of this block, several at a time. The tile after the one it is in is read ahead.
struct Cursor {
    const int4 *next, *end;
    int4 ahead;
    int left = 0, k_block = 0, column = 0, width = 0;
    bool ended = false;

    // Stands on k-block number `skip` of the block's work.
    __device__ __forceinline__ Cursor(const Problem& problem, int skip)
        : next(problem.work + __ldg(problem.work_begin + blockIdx.x)),
          end(problem.work + __ldg(problem.work_begin + blockIdx.x + 1)) {
        read_ahead();
        advance(skip);
    }

    __device__ __forceinline__ void read_ahead() {
        if (next < end) ahead = load_early(next);
    }

    __device__ __forceinline__ void advance(int k_blocks) {
        while (k_blocks >= left) {
            k_blocks -= left;
            ended = next >= end;
            if (ended) return;
            const WorkTile tile(ahead);
            k_block = tile.first, left = tile.k_blocks, column = tile.column, width = tile.width;
            ++next;
            read_ahead();
        }
        k_block += k_blocks, left -= k_blocks;
    }
};

// The list of a k-block's rows travels through shared memory as well, fetched so much earlier that it has landed when it is needed.
template <int WIDEST, Weights WEIGHTS>
struct Producer {
    using B = Block<WIDEST>;
    static constexpr int STAGES = B::STAGES, PRODUCER_GROUPS = B::PRODUCER_GROUPS, GROUP_WARPS = B::GROUP_WARPS;
    static constexpr bool HALVED = WEIGHTS == Weights::HALVED;
    static constexpr int UNIT_BYTES = HALVED ? HALVED_PANEL_BYTES : MMA_TILE_BYTES;  // in which weights are counted
    static constexpr int WARP_ROWS = STAGE_ROWS / GROUP_WARPS;
    static constexpr int LIST_WORDS = WARP_ROWS + K_BLOCK_WORDS - STAGE_ROWS;
    static constexpr int LISTS = (STAGES + PRODUCER_GROUPS - 1) / PRODUCER_GROUPS + 1;  // of a warp
    using Lists = int[PRODUCER_GROUPS * GROUP_WARPS * LISTS][LIST_WORDS];

    // How a warp's lanes share its rows of a k-block: 16 bytes each, one row at a time, or two or four where tiles are narrow.
    struct Lanes {
        int chunk, row, atoms;  // the lane's place in a row; its first row; how many eights of rows it loads
        bool loads;
        uint32_t offsets[8];    // a row's place among eight decides its swizzle

        __device__ __forceinline__ void find(int width, int first_row) {
            const int lane = threadIdx.x % 32, at_once = width <= 64 ? 4 : width <= 128 ? 2 : 1, chunks = 32 / at_once;
            chunk = lane % chunks, row = lane / chunks * (WARP_ROWS / at_once), atoms = WARP_ROWS / at_once / 8;
            loads = chunk * 8 < width;
#pragma unroll
            for (int i = 0; i < 8; ++i)
                offsets[i] = chunk / 8 * PANEL_BYTES + (first_row + row + i) * ROW_BYTES + ((chunk % 8) ^ i) * 16;
        }
    };

    // This lane's part of the rows of a k-block.
    template <int ATOMS>
    __device__ __forceinline__ static void load_rows(const Lanes& lanes, bool loads, const char* x, uint32_t stride, uint32_t base,
                                                     const int* list) {
        const uint32_t wanted = loads ? 16 : 0;
#pragma unroll
        for (int atom = 0; atom < ATOMS; ++atom) {
            int rows[8];
            *reinterpret_cast<int4*>(rows) = *reinterpret_cast<const int4*>(list + lanes.row + atom * 8);
            *reinterpret_cast<int4*>(rows + 4) = *reinterpret_cast<const int4*>(list + lanes.row + atom * 8 + 4);
#pragma unroll
            for (int i = 0; i < 8; ++i)  // where the row is -1, nothing is read and zeros are written
                copy_16_bytes(base + lanes.offsets[i] + atom * 8 * ROW_BYTES, row_address(x, rows[i], stride),
                              rows[i] >= 0 ? wanted : 0);
        }
    }

    __device__ __forceinline__ static void run(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                               uint32_t slot_uses, Lists& all_lists) {
        const int lane = threadIdx.x % 32, warp = static_cast<int>(warp_uniform(threadIdx.x / 32)) - CONSUMERS / 32;
        const int producer_group = warp / GROUP_WARPS, first_row = warp % GROUP_WARPS * WARP_ROWS;
        const bool leads = warp % GROUP_WARPS == 0 && lane == 0;
        int(*lists)[LIST_WORDS] = all_lists + warp * LISTS;
        const int word = lane < WARP_ROWS / 4 ? first_row + lane * 4 : STAGE_ROWS;
        const uint32_t word_target = shared_address(lists[0] + min(lane * 4, WARP_ROWS));
        const auto fetch_list = [&](int turn, int k_block) {
            if (lane <= WARP_ROWS / 4)
                copy_16_bytes(word_target + turn * LIST_WORDS * 4, problem.k_blocks + static_cast<int64_t>(k_block) * K_BLOCK_WORDS + word,
                              16);
        };
        Cursor cursor(problem, producer_group), ahead = cursor;
        for (int turn = 0; turn < LISTS && !ahead.ended; ++turn, ahead.advance(PRODUCER_GROUPS))
            if (lane < (K_BLOCK_WORDS + 31) / 32)
                prefetch_line(problem.k_blocks + static_cast<int64_t>(ahead.k_block) * K_BLOCK_WORDS + lane * 32);
        ahead = cursor;
        pdl_wait();  // tables of work were there before the launch; all else may come from kernels that still run
        for (int turn = 0; turn < LISTS && !ahead.ended; ++turn, ahead.advance(PRODUCER_GROUPS)) fetch_list(turn, ahead.k_block);
        wait_for_own_copies();
        __syncwarp();

        const uint32_t stride = kept(problem.x_stride);
        Lanes lanes;
        int slot = producer_group, turn = 0, width = 0;
        uint32_t phase = 0;
        for (; !cursor.ended; cursor.advance(PRODUCER_GROUPS)) {
            while (slot >= STAGES) slot -= STAGES, phase ^= 1;
            if (width != cursor.width) lanes.find(width = cursor.width, first_row);
            const int column = cursor.column + lanes.chunk * 8;
            const bool loads = lanes.loads && column < problem.m;  // what lies past m reaches no column of Y before it
            const char* x = kept(static_cast<const char*>(problem.x) + (loads ? column : 0) * 2);
            const uint32_t base = stages + slot * B::STAGE_BYTES, ready = full + 8 * slot;
            const int* list = lists[turn];
            barrier_wait(empty + 8 * slot, phase ^ 1);  // and the list has landed
            const int4 use = *reinterpret_cast<const int4*>(list + WARP_ROWS);
            switch (lanes.atoms) {
                case 4: load_rows<4>(lanes, loads, x, stride, base, list); break;
                case 2: load_rows<2>(lanes, loads, x, stride, base, list); break;
                default: load_rows<1>(lanes, loads, x, stride, base, list); break;
            }
            if (leads) {
                const uint32_t units_0 = HALVED ? (use.x & 15) != 0 : __popc(use.x & 15);
                const uint32_t units_1 = HALVED ? (use.x & 240) != 0 : __popc(use.x & 240);
                const uint32_t bytes_0 = units_0 * UNIT_BYTES, bytes_1 = units_1 * UNIT_BYTES;
                store_word(slot_uses + 4 * slot, use.x);
                barrier_arrive_expect(ready, bytes_0 + bytes_1);
                if (bytes_0)
                    copy_bulk(base + B::X_BYTES, problem.panels + static_cast<int64_t>(use.y) * UNIT_BYTES, bytes_0, ready);
                if (bytes_1)
                    copy_bulk(base + B::X_BYTES + PANEL_BYTES, problem.panels + static_cast<int64_t>(use.z) * UNIT_BYTES,
                              bytes_1, ready);
            }
            barrier_arrive_after_copies(ready);
            __syncwarp();  // every lane has read the list
            if (!ahead.ended) {
                fetch_list(turn, ahead.k_block);
                ahead.advance(PRODUCER_GROUPS);
            }
            slot += PRODUCER_GROUPS;
            if (++turn == LISTS) turn = 0;
        }
    }
};

}  // namespace
