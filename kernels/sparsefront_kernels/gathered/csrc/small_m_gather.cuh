// The kernel for few rows of X in which every lane gathers its own elements of X into registers.
#pragma once

#include "small_m_products.cuh"

namespace {

// The kernel for few rows of X in which dedicated warps gather X into shared memory, once for all others.
// Four 8 x 8 matrices of 16-bit elements, transposed; lanes 8i to 8i + 7 give the rows of matrix i.
__device__ __forceinline__ void load_transposed(uint32_t (&v)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(uint32_t (&v)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address) : "memory");
}

__device__ __forceinline__ unsigned load_shared_2(uint32_t address) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
    return v;
}

// Dedicated warps gather X into shared memory for all others, which share the outputs of a row tile (and, if there are fewer
// outputs than warps can hold, the chunks of a stage). 16-bit elements; the rows of X are contiguous, eight at a time.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
__global__ void __launch_bounds__(32 * (MOST_WARPS + GATHERERS), FRAGMENTS * COLUMN_BLOCKS <= 8 ? 2 : 1)
    gathered_small_m_shared_kernel(const __grid_constant__ Problem problem) {
    constexpr int ROW_BYTES = 16 * COLUMN_BLOCKS, CHUNK_X_BYTES = CHUNK * ROW_BYTES;
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * MOST_STAGES + 1];
    __shared__ SharedTargets targets;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ring = shared_address(dynamic_shared), lists = ring + problem.region;
    const uint32_t full = shared_address(barriers), empty = full + 8 * MOST_STAGES, listed = empty + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < problem.stages; ++stage) {
            barrier_init(full + 8 * stage, 32 * GATHERERS + 1);
            barrier_init(empty + 8 * stage, MOST_WARPS);
        }
        barrier_init(listed, 1);
        fence_barrier_init();
    }
    const int rank = blockIdx.x % problem.splits, row_tile = blockIdx.x / problem.splits;
    int2 range = make_int2(row_tile * problem.chunks_of_each, problem.chunks_of_each);
    prefetch_x(problem.x, problem.x_bytes);
    if (problem.chunks_of_each < 0) range = problem.row_tiles[row_tile];
    const Share<T> share(problem, range, rank);
    const int stage_chunks = problem.stage_chunks, turns = (share.count + stage_chunks - 1) / stage_chunks;
    const int x_offset = stage_chunks * share.panel_bytes, stage_bytes = x_offset + stage_chunks * CHUNK_X_BYTES;
    const auto load_panels = [&](int turn, int stage) {
        const int bytes = min(stage_chunks, share.count - turn * stage_chunks) * share.panel_bytes;
        barrier_arrive_expect(full + 8 * stage, bytes);
        copy_bulk(ring + stage * stage_bytes, share.panels + static_cast<long long>(turn) * x_offset, bytes, full + 8 * stage);
        barrier_arrive_issued(full + 8 * stage);
    };
    if (threadIdx.x == 0 && turns > 0) {
        share.load_lists(lists, listed);
        for (int stage = 0; stage < min(problem.stages, turns); ++stage) load_panels(stage, stage);
        if (problem.pdl >= PDL_PREFETCH)
            prefetch_part(share.panels + static_cast<long long>(problem.stages) * x_offset,
                          static_cast<long long>(share.count - problem.stages * stage_chunks) * share.panel_bytes, 0, 1, problem.prefetch_bytes);
    }
    if (problem.pdl == PDL_PREFETCH_LATE && turns <= problem.stages) pdl_launch_dependents();
    wait_for_grids_before(problem);
    if (warp >= MOST_WARPS) {
        const int gatherer = threadIdx.x - 32 * MOST_WARPS;
        if (turns > 0) barrier_wait(listed, 0);
        int stage = 0;
        uint32_t phase = 1;
        for (int turn = 0; turn < turns; ++turn) {
            if (turn >= problem.stages) {
                barrier_wait(empty + 8 * stage, phase);
                if (gatherer == 0) load_panels(turn, stage);
                if (problem.pdl == PDL_PREFETCH_LATE && turn + 1 == turns) pdl_launch_dependents();
            }
            const uint32_t target = ring + stage * stage_bytes + x_offset;
            const int vectors = min(stage_chunks, share.count - turn * stage_chunks) * CHUNK * COLUMN_BLOCKS;
            const uint32_t list = lists + turn * stage_chunks * LIST_BYTES;
#pragma unroll 4
            for (int at = gatherer; at < vectors; at += 32 * GATHERERS) {
                const int row = at / COLUMN_BLOCKS, vector = at % COLUMN_BLOCKS;
                // which list item is at this place of the right operand
                const int item = row % 8 / 2 * 4 + row % 2 + row % 16 / 8 * 2;
                const unsigned input = load_shared_2(list + row / 16 * LIST_BYTES + 2 * item);
                const int place = vector ^ (row / (8 / COLUMN_BLOCKS) % COLUMN_BLOCKS);  // eight rows use different banks
                copy_16_bytes(target + row * ROW_BYTES + place * 16,
                              static_cast<const uint8_t*>(row_address(problem.x, input, problem.x_input_stride)) + vector * 16,
                              input != NO_INPUT && vector * 8 < problem.m ? 16 : 0);
            }
            barrier_arrive_after_copies(full + 8 * stage);
            if (++stage == problem.stages) stage = 0, phase ^= 1;
        }
        wait_for_own_copies();
        return;
    }
    const Targets own(problem, row_tile * problem.width, problem.width);
    write_pruned<T>(problem, 32 * MOST_WARPS);
    const int owners = problem.width / (16 * FRAGMENTS);  // warps that share the outputs; the others share the chunks
    const int owner = warp % owners, k_slice = warp / owners, warp_split_k = MOST_WARPS / owners;
    float acc[FRAGMENTS][COLUMN_BLOCKS][4] = {};
    int stage = 0;
    uint32_t phase = 0;
    // this lane's row of a matrix that ldmatrix reads
    constexpr int AT_ONCE = COLUMN_BLOCKS == 1 ? 1 : 2;  // row blocks
    const int row = lane % 16, first_vector = AT_ONCE == 2 ? lane / 16 : 0;
    const int turned = row / (8 / COLUMN_BLOCKS) % COLUMN_BLOCKS;
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
        const int chunks = min(stage_chunks, share.count - turn * stage_chunks);
        const uint32_t panels = ring + stage * stage_bytes + owner * FRAGMENTS * FRAGMENT_BYTES<T> + lane * 16;
        const uint32_t rows = ring + stage * stage_bytes + x_offset + row * ROW_BYTES;
        barrier_wait(full + 8 * stage, phase);
#pragma unroll 2
        for (int chunk = k_slice; chunk < chunks; chunk += warp_split_k) {
            uint4 a[FRAGMENTS];
#pragma unroll
            for (int fragment = 0; fragment < FRAGMENTS; ++fragment)
                a[fragment] = load_shared_16(panels + chunk * share.panel_bytes + fragment * FRAGMENT_BYTES<T>);
#pragma unroll
            for (int block = 0; block < COLUMN_BLOCKS; block += AT_ONCE) {
                uint32_t b[2 * AT_ONCE];
                load_transposed(b, rows + chunk * CHUNK_X_BYTES + ((block + first_vector) ^ turned) * 16);
#pragma unroll
                for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
#pragma unroll
                    for (int i = 0; i < AT_ONCE; ++i) multiply_add<T>(acc[fragment][block + i], a[fragment], b[2 * i], b[2 * i + 1]);
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + 8 * stage);
        if (++stage == problem.stages) stage = 0, phase ^= 1;
    }
    asm volatile("bar.sync 1, %0;" ::"n"(32 * MOST_WARPS) : "memory");  // the ring is no longer used: it holds the sums from here on
    const int k_slice_sums = problem.width / 16 * COLUMN_BLOCKS * BLOCK_SUMS;
    float* sums = reinterpret_cast<float*>(dynamic_shared);
    store_sums(sums + k_slice * k_slice_sums + owner * FRAGMENTS * COLUMN_BLOCKS * BLOCK_SUMS, acc, lane);
    if (threadIdx.x < problem.width) targets.output[threadIdx.x] = own.output, targets.bias[threadIdx.x] = own.bias;
    reduce_and_write<T, COLUMN_BLOCKS, false>(problem, targets, sums, k_slice_sums, warp_split_k, problem.width, 32 * MOST_WARPS, rank);
}

// Chunks per slot: about 4 KB, and at most as many as the registers hold gathered elements for.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
constexpr int UNIT_OF = 16 / sizeof(T) / (FRAGMENTS > COLUMN_BLOCKS ? FRAGMENTS : COLUMN_BLOCKS) > 0
                            ? 16 / sizeof(T) / (FRAGMENTS > COLUMN_BLOCKS ? FRAGMENTS : COLUMN_BLOCKS)
                            : 1;

// Each warp gathers its own elements of X into registers; warps share the chunks.
// FRAGMENTS: per warp, 16 outputs each. COLUMN_BLOCKS: eight rows of X each. X_SHARED: all of X is copied into shared memory.
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
    const int unit = max(1, min(UNIT, (share.count + warps - 1) / warps));  // chunks per slot
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
        } else {
            source += part * CHUNK_BYTES;
            for (int chunk = 0; chunk < chunks; ++chunk, source += share.panel_bytes, target += CHUNK_BYTES)
                copy_bulk(target, source, CHUNK_BYTES, barrier);
        }
        barrier_arrive_issued(barrier);
    };
    uint2 first_lists[UNIT];  // the first slot's lists do not wait for all others
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
            barrier_arrive_issued(x_here);
        }
    }
    const Targets own(problem, row_tile * problem.width + part * 16 * FRAGMENTS, 16 * FRAGMENTS);
    write_pruned<T>(problem, blockDim.x);

    float acc[FRAGMENTS][COLUMN_BLOCKS][4] = {};
    const int first_row = lane / 4 * COLUMN_BLOCKS;  // first row of X that this lane holds
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
    for (int turn = 0; turn < mine; turn += 2) {  // two sets of registers alternate: copying one would wait for the loads
        multiply_slot(even, odd, turn);
        if (turn + 1 < mine) multiply_slot(odd, even, turn + 1);
    }

    // This warp's ring is no longer used: it holds the sums from here on.
    store_sums(reinterpret_cast<float*>(dynamic_shared + warp * problem.region), acc, lane);
    if (threadIdx.x < 16 * FRAGMENTS) targets.output[threadIdx.x] = own.output, targets.bias[threadIdx.x] = own.bias;
    reduce_and_write<T, COLUMN_BLOCKS, true>(problem, targets, reinterpret_cast<float*>(dynamic_shared), problem.region / 4,
                                             max(1, min(warps, slots)), 16 * FRAGMENTS, blockDim.x, rank);
}

}  // namespace
