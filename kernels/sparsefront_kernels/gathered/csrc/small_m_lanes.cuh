// The kernel for few rows of X in which every lane gathers its own elements of X into registers.
#pragma once

#include "small_m_sums.cuh"

namespace {

// Chunks of a slot: about 4 KB, and no more than the registers hold gathered elements for.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
constexpr int UNIT_OF = 16 / sizeof(T) / (FRAGMENTS > COLUMN_BLOCKS ? FRAGMENTS : COLUMN_BLOCKS) > 0
                            ? 16 / sizeof(T) / (FRAGMENTS > COLUMN_BLOCKS ? FRAGMENTS : COLUMN_BLOCKS)
                            : 1;

// X gathered into registers by each warp for itself; warps share the chunks.
// FRAGMENTS: 16 outputs each, of one warp. COLUMN_BLOCKS: eight rows of X each. X_SHARED: all of X is copied into shared memory.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS, bool X_SHARED>
__global__ void __launch_bounds__(32 * MOST_WARPS, FRAGMENTS * COLUMN_BLOCKS <= (sizeof(T) == 2 ? 16 : 4) ? 2 : 1)
    gathered_small_m_kernel(const __grid_constant__ Problem problem) {
    constexpr int UNIT = UNIT_OF<T, FRAGMENTS, COLUMN_BLOCKS>;
    constexpr int CHUNK_BYTES = FRAGMENTS * FRAGMENT_BYTES<T>, SLOT_BYTES = UNIT * CHUNK_BYTES;
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[MOST_WARPS * MOST_STAGES + 2];
    __shared__ SharedTargets targets;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const uint32_t ring = shared_address(dynamic_shared) + warp * problem.region;
    const uint32_t lists = shared_address(dynamic_shared) + warps * problem.region;
    const uint32_t full = shared_address(barriers + warp * MOST_STAGES);
    const uint32_t listed = shared_address(barriers + MOST_WARPS * MOST_STAGES), x_here = listed + 8;
    if (lane == 0) {
        for (int stage = 0; stage < problem.stages; ++stage) barrier_init(full + 8 * stage, 1);
        if (warp == 0) barrier_init(listed, 1), barrier_init(x_here, 1);
        fence_barrier_init();
    }
    const int rank = blockIdx.x % problem.splits, cta_tile = blockIdx.x / problem.splits;
    const int parts = problem.width / (16 * FRAGMENTS), row_tile = cta_tile / parts, part = cta_tile % parts;
    int2 range = make_int2(row_tile * problem.chunks_of_each, problem.chunks_of_each);
    prefetch_x(problem.x, problem.x_bytes);
    if (problem.chunks_of_each < 0) range = problem.row_tiles[row_tile];
    const Share<T> share(problem, range, rank);
    const int unit = max(1, min(UNIT, (share.count + warps - 1) / warps));  // chunks of a slot
    const int slots = (share.count + unit - 1) / unit, mine = slots > warp ? (slots - warp - 1) / warps + 1 : 0;
    if (threadIdx.x == 0 && slots > warps) share.load_lists(lists, listed);  // else there are first slots only
    const auto chunks_of = [&](int turn) { return min(unit, share.count - (warp + turn * warps) * unit); };
    const auto load = [&](int turn, int stage) {
        const int chunks = chunks_of(turn);
        const uint32_t barrier = full + 8 * stage;
        uint32_t target = ring + stage * SLOT_BYTES;
        barrier_arrive_expect(barrier, chunks * CHUNK_BYTES);
        const uint8_t* source = share.panels + static_cast<long long>(warp + turn * warps) * unit * share.panel_bytes;
        if (parts == 1) {
            copy_bulk(target, source, chunks * CHUNK_BYTES, barrier);
            return;
        }
        source += part * CHUNK_BYTES;
        for (int chunk = 0; chunk < chunks; ++chunk, source += share.panel_bytes, target += CHUNK_BYTES)
            copy_bulk(target, source, CHUNK_BYTES, barrier);
    };
    uint2 first_lists[UNIT];  // those of the first slot do not wait for all others
#pragma unroll
    for (int chunk = 0; chunk < UNIT; ++chunk) {
        if (chunk < chunks_of(0))
            first_lists[chunk] = *reinterpret_cast<const uint2*>(share.lists + (warp * unit + chunk) * LIST_BYTES + lane % 4 * 8);
    }
    if (lane == 0) {
        for (int stage = 0; stage < min(problem.stages, mine); ++stage) load(stage, stage);
    }
    if (lane == 0 && problem.pdl >= PDL_PREFETCH) {
        const int held = problem.stages * warps * unit;
        prefetch_part(share.panels + static_cast<long long>(held) * share.panel_bytes, static_cast<long long>(share.count - held) * share.panel_bytes,
                      part * warps + warp, parts * warps, problem.prefetch_bytes / warps);
    }
    if (problem.pdl == PDL_PREFETCH_LATE && mine <= problem.stages) pdl_launch_dependents();
    wait_for_grids_before(problem);
    if constexpr (X_SHARED) {
        if (threadIdx.x == 0) {
            barrier_arrive_expect(x_here, problem.x_copy * problem.x_copy_bytes);
            for (int row = 0; row < problem.x_copy; ++row)
                copy_bulk(shared_address(dynamic_shared) + problem.x_offset + row * problem.x_pitch,
                          static_cast<const T*>(problem.x) + row * problem.x_row_stride, problem.x_copy_bytes, x_here);
        }
    }
    const Targets own(problem, row_tile * problem.width + part * 16 * FRAGMENTS, 16 * FRAGMENTS);
    write_pruned<T>(problem, blockDim.x);

    float acc[FRAGMENTS][COLUMN_BLOCKS][4] = {};
    const int first_row = lane / 4 * COLUMN_BLOCKS;  // of the rows of X that this lane holds
    const bool active = first_row < problem.m;
    const auto at = [&](unsigned input) {
        if constexpr (X_SHARED) {
            return shared_address(dynamic_shared) + problem.x_offset + first_row * problem.x_pitch + input * problem.x_input_stride;
        } else {
            return row_address(static_cast<const T*>(problem.x) + first_row * problem.x_row_stride, input, problem.x_input_stride);
        }
    };
    Gathered<T, COLUMN_BLOCKS, UNIT> even, odd;
    int stage = 0;
    uint32_t phase = 0;
    const auto gather = [&](Gathered<T, COLUMN_BLOCKS, UNIT>& rows, int turn) {
        const uint32_t own_lists = lists + (warp + turn * warps) * unit * LIST_BYTES + lane % 4 * 8;
        if (turn == 1) barrier_wait(listed, 0);
        rows.load(active, chunks_of(turn), [&](int chunk) { return load_shared_8(own_lists + chunk * LIST_BYTES); }, at);
    };
    const auto multiply_slot = [&](const Gathered<T, COLUMN_BLOCKS, UNIT>& rows, Gathered<T, COLUMN_BLOCKS, UNIT>& next, int turn) {
        if (turn + 1 < mine) gather(next, turn + 1);
        barrier_wait(full + 8 * stage, phase);
        const int chunks = chunks_of(turn);
        const uint32_t slot = ring + stage * SLOT_BYTES + lane * 16;
#pragma unroll
        for (int chunk = 0; chunk < UNIT; ++chunk) {
            if (chunk < chunks) multiply_chunk(acc, rows.x[chunk], slot + chunk * CHUNK_BYTES);
        }
        __syncwarp();  // every lane has read the slot
        if (lane == 0 && turn + problem.stages < mine) load(turn + problem.stages, stage);
        if (problem.pdl == PDL_PREFETCH_LATE && turn + problem.stages + 1 == mine) pdl_launch_dependents();
        if (++stage == problem.stages) stage = 0, phase ^= 1;
    };
    if (X_SHARED) barrier_wait(x_here, 0);
    if (mine > 0) even.load(active, chunks_of(0), [&](int chunk) { return first_lists[chunk]; }, at);
#pragma unroll 1
    for (int turn = 0; turn < mine; turn += 2) {  // two sets of registers take turns: a copy would wait for the loads
        multiply_slot(even, odd, turn);
        if (turn + 1 < mine) multiply_slot(odd, even, turn + 1);
    }

    // This warp's ring is done with: it takes the sums.
    store_sums(reinterpret_cast<float*>(dynamic_shared + warp * problem.region), acc, lane);
    if (threadIdx.x < 16 * FRAGMENTS) targets.output[threadIdx.x] = own.output, targets.bias[threadIdx.x] = own.bias;
    reduce_and_write<T, COLUMN_BLOCKS, true>(problem, targets, reinterpret_cast<float*>(dynamic_shared), problem.region / 4,
                                             max(1, min(warps, slots)), 16 * FRAGMENTS, blockDim.x, rank);
}

}  // namespace
