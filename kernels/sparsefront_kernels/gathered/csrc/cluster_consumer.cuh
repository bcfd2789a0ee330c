// Consumer warpgroups of the cluster kernel.
#pragma once

#include "cluster_work.cuh"

namespace {

template <typename T, int BLOCK_M, bool SPLIT, EpilogueKind KIND>
__device__ __forceinline__ void consume(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                        uint32_t received, uint32_t slot_uses) {
    constexpr int X_BYTES = BLOCK_M * ROW_BYTES;
    constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    const uint32_t half = warp_uniform(threadIdx.x / 128);
    const uint32_t first_x = operand_place(stages, PANEL_BYTES), first_w = operand_place(stages + X_BYTES + half * PANEL_BYTES, 0);
    const bool signals = threadIdx.x % 32 == 0;
    const int blocks = column_blocks<BLOCK_M>(problem), work_tiles = problem.cta_tile_count * blocks;
    float acc[BLOCK_M / 2];
    Ring ring;
    int index = static_cast<int>(blockIdx.x);
    WorkTile<BLOCK_M> work_tile(problem, index, blocks);
    Rows<KIND> rows;
    rows.find(problem.epilogue, work_tile.cta_tile);
    while (true) {
        rows.load_bias(problem.epilogue);
        int add = 0, previous = -1;
        if constexpr (begins_with_residual(KIND)) {
            begin_with_residual<T, BLOCK_M>(problem.epilogue, rows, work_tile.column, acc);
            fence_sums(acc);
            add = 1;
        }
        if (!SPLIT || Range<SPLIT>(problem, work_tile.cta_tile).count > 0) {
            while (true) {
                barrier_wait(full + 8 * ring.slot, ring.phase);
                const uint32_t uses = warp_uniform(load_word(slot_uses + 4 * ring.slot));
                fence_for_tensor_cores();  // X was written by cp.async: make it visible to wgmma
                const uint32_t use = (uses >> (4 * half)) & 15;
                const uint32_t x = first_x + ring.slot * (STAGE_BYTES >> 4), w = first_w + ring.slot * (STAGE_BYTES >> 4);
                if (use == 15) {
                    multiply<T, BLOCK_M, 4>(acc, w, x, use, add);
                    wgmma_wait<1>();  // the wgmma of the previous stage has finished reading it
                } else {
                    switch (__popc(use)) {
                        case 3: multiply<T, BLOCK_M, 3>(acc, w, x, use, add); break;
                        case 2: multiply<T, BLOCK_M, 2>(acc, w, x, use, add); break;
                        case 1: multiply<T, BLOCK_M, 1>(acc, w, x, use, add); break;
                    }
                    wgmma_wait<0>();  // halves keep different inputs, so loads are the bottleneck: release the stage at once
                }
                add |= use != 0;
                __syncwarp();  // all lanes have finished their own reads of the stage
                if (previous >= 0 && signals) barrier_arrive(empty + 8 * previous);
                previous = ring.slot;
                if (use != 15) {
                    if (signals) barrier_arrive(empty + 8 * previous);
                    previous = -1;
                }
                ring.advance(problem.stages);
                if (uses & LAST) break;
            }
        }
        const int column = work_tile.column;
        const Rows<KIND> found = rows;
        index += static_cast<int>(gridDim.x);
        if (index < work_tiles) {
            work_tile = WorkTile<BLOCK_M>(problem, index, blocks);
            rows.find(problem.epilogue, work_tile.cta_tile);
            prefetch_residual<T, BLOCK_M>(problem.epilogue, rows, work_tile.column);
        }
        wgmma_wait<0>();
        fence_sums(acc);
        if (previous >= 0 && signals) barrier_arrive(empty + 8 * previous);
        if (!add) {  // otherwise the first wgmma has overwritten the accumulators
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2; ++i) acc[i] = 0.0f;
        }
        if constexpr (SPLIT) {
            reduce_and_store<T, BLOCK_M, KIND>(problem.epilogue, found, column, problem.splits, stages, received, acc);
        } else {
            store<T, BLOCK_M, KIND>(problem.epilogue, found, column, acc);
        }
        if (index >= work_tiles) break;
    }
}

}  // namespace
