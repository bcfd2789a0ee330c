// Y[N, M] = W[N, K] · X[K, M] + bias[N] for a gathered weight on Hopper's tensor cores (sm_90a), feature-major.
//
// A CTA computes 128 outputs x BLOCK_M columns at a time. Its two consumer warpgroups own 64 outputs each; further warps load. A pipeline
// stage is 64 rows of X, gathered by cp.async (a kept input is one contiguous run of BLOCK_M elements), and for each half the weights
// of those rows, packed in the tensor cores' layout for one bulk copy.
//
// The halves may keep different inputs. Rows come in MMA tiles of 16, and each MMA tile is used by one half or by both: a row
// that both keep is loaded once, and no product is spent on a half that does not keep it. See ../README.md.

#include <algorithm>
#include <iterator>

#include "../../cuda/epilogue.cuh"
#include "mma_tiles.cuh"

namespace {

constexpr int MOST_STAGES = 8;

constexpr uint32_t LAST = 1u << 8;                   // flag in a stage's `uses`: the work tile ends with this stage

struct Problem {
    const void* x;                // [K, m], row stride `x_stride` in bytes
    const uint8_t* panels;        // MMA tiles of 16 inputs x 64 outputs, swizzled
    // [k_blocks, 68]: 64 rows of X, or -1 for a row of zeros; then a bit mask of the MMA tiles in use (bit g: half 0 uses
    // MMA tile g; bit 4 + g: half 1 does), and the offsets in `panels` of the MMA tiles of half 0 and of half 1
    const int* k_blocks;
    const int2* cta_tiles;        // first k-block, number of k-blocks
    // k-blocks per CTA tile if all have equally many, or the first `longer` one more; else 0
    int k_blocks_of_each;
    int longer;
    Epilogue epilogue;
    unsigned x_stride;
    int m;
    int cta_tile_count;
    int stages;                   // pipeline stages
    int raster_swizzle;                    // rasterization swizzle: CTA tiles that are visited together for cache reuse
    int splits;                   // CTAs of a cluster that split the k-blocks of one work tile; then one work tile per CTA
    int pdl;                  // whether the kernel may start before its predecessors in the stream end
    // what a CTA prefetches into L2 before the PDL wait. Negative: nothing; 0: lists only; else lists and panels, if every
    // half of every CTA tile uses this many MMA tiles, stored contiguously
    int prefetch;
};

// This CTA's part of a CTA tile's k-blocks.
template <bool SPLIT>
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int cta_tile) {
        int2 all = make_int2(cta_tile * problem.k_blocks_of_each + min(cta_tile, problem.longer),
                             problem.k_blocks_of_each + (cta_tile < problem.longer));
        if (problem.k_blocks_of_each == 0) {  // costs one more round trip to memory before the first load of X
            all = problem.cta_tiles[cta_tile];
            all.x = warp_uniform(all.x), all.y = warp_uniform(all.y);
        }
        first = all.x, count = all.y;
        if constexpr (SPLIT) {
            const int rank = rank_in_cluster(), begin = all.y * rank / problem.splits;
            first += begin, count = all.y * (rank + 1) / problem.splits - begin;
        }
    }
};

// Number of column blocks. There are as many work tiles per CTA tile; the grid (its CTAs, or clusters) strides over all
// of them.
template <int BLOCK_M>
__device__ __forceinline__ int column_blocks(const Problem& problem) {
    return (problem.m + BLOCK_M - 1) / BLOCK_M;
}

// Maps a work-tile index to its CTA tile and first column.
template <int BLOCK_M>
struct WorkTile {
    int cta_tile, column;

    __device__ WorkTile(const Problem& problem, int index, int column_blocks) {
        const int per_swizzle = problem.raster_swizzle * column_blocks;
        const int first = index / per_swizzle * problem.raster_swizzle;
        const int cta_tiles = min(problem.raster_swizzle, problem.cta_tile_count - first);
        const int within = index % per_swizzle;
        cta_tile = first + within % cta_tiles;
        column = within / cta_tiles * BLOCK_M;
    }
};

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

template <typename T, int BLOCK_M, int PRODUCER_GROUPS, int GROUP_WARPS, int BLOCKS_PER_SM, bool SPLIT, EpilogueKind KIND>
__global__ void __launch_bounds__(CONSUMERS + 32 * PRODUCER_GROUPS * GROUP_WARPS, BLOCKS_PER_SM)
    gathered_sm90_cluster_kernel(const __grid_constant__ Problem problem) {
    using Loader = Producer<T, BLOCK_M, PRODUCER_GROUPS, GROUP_WARPS, SPLIT>;
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * MOST_STAGES + 1];
    __shared__ uint32_t uses_of_slots[MOST_STAGES];
    __shared__ alignas(16) typename Loader::Lists lists;
    const uint32_t stages = warp_uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // the swizzle repeats every 1024 bytes
    const uint32_t full = warp_uniform(shared_address(barriers)), empty = full + 8 * MOST_STAGES, received = empty + 8 * MOST_STAGES;
    const uint32_t slot_uses = warp_uniform(shared_address(uses_of_slots));
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < problem.stages; ++slot) {
            barrier_init(full + 8 * slot, 32 * GROUP_WARPS + 1);
            barrier_init(empty + 8 * slot, CONSUMERS / 32);
        }
        if (SPLIT) barrier_init(received, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (warp_uniform(threadIdx.x / 32) < CONSUMERS / 32) {
        pdl_wait();
        pdl_launch_dependents();
        consume<T, BLOCK_M, SPLIT, KIND>(problem, stages, full, empty, received, slot_uses);
    } else {
        Loader::run(problem, stages, full, empty, slot_uses, lists);
    }
}

template <typename T, int BLOCK_M, int PRODUCER_GROUPS, int GROUP_WARPS, int BLOCKS_PER_SM, EpilogueKind KIND>
cudaError_t launch(const Problem& problem, int clusters, cudaStream_t stream) {
    constexpr auto one_block = gathered_sm90_cluster_kernel<T, BLOCK_M, PRODUCER_GROUPS, GROUP_WARPS, BLOCKS_PER_SM, false, KIND>;
    auto kernel = one_block;
    if constexpr (!begins_with_residual(KIND)) {
        if (problem.splits > 1) kernel = gathered_sm90_cluster_kernel<T, BLOCK_M, PRODUCER_GROUPS, GROUP_WARPS, BLOCKS_PER_SM, true, KIND>;
    }
    if (problem.splits > 1 && kernel == one_block) return cudaErrorInvalidValue;
    // with fewer stages a producer group could be two rounds ahead of a slot, and parities distinguish only consecutive rounds
    if (problem.stages < PRODUCER_GROUPS) return cudaErrorInvalidValue;
    const int stage_bytes = problem.stages * (BLOCK_M * ROW_BYTES + 2 * PANEL_BYTES), bytes = 1024 + stage_bytes;
    const int subtiles = (BLOCK_M / 32 + problem.splits - 1) / problem.splits;  // that a CTA of a split adds up
    if (stage_bytes < subtiles * (problem.splits - 1) * CONSUMERS * 64) return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    const unsigned cluster = problem.splits;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {1, cluster, 1};
    }
    if (problem.pdl) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters, cluster);
    config.blockDim = dim3(CONSUMERS + 32 * PRODUCER_GROUPS * GROUP_WARPS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

template <typename T, EpilogueKind KIND>
cudaError_t launch(const Problem& problem, int block_m, int blocks_per_sm, int clusters, cudaStream_t stream) {
    switch (block_m * 10 + blocks_per_sm) {
        case 641:
        case 642: return launch<T, 64, 2, 2, 2, KIND>(problem, clusters, stream);
        case 1281: return launch<T, 128, 4, 2, 1, KIND>(problem, clusters, stream);
        case 1282:  // too few registers for the reduction
            return problem.splits > 1 ? cudaErrorInvalidValue : launch<T, 128, 2, 1, 2, KIND>(problem, clusters, stream);
        default: return cudaErrorInvalidValue;
    }
}

template <typename T>
cudaError_t launch(const Problem& problem, int block_m, int blocks_per_sm, int clusters, cudaStream_t stream) {
    const Epilogue& epilogue = problem.epilogue;
    const bool activates = epilogue.activation != NONE;
    const bool adds = epilogue.residual != nullptr && problem.splits == 1;  // split CTAs add it at the end
    const auto chosen = epilogue.y_row_major ? (activates ? launch<T, EpilogueKind::ROW_MAJOR_ACTIVATED>
                                                : adds    ? launch<T, EpilogueKind::ROW_MAJOR_RESIDUAL>
                                                          : launch<T, EpilogueKind::ROW_MAJOR>)
                                             : (activates ? launch<T, EpilogueKind::FEATURE_MAJOR_ACTIVATED>
                                                : adds    ? launch<T, EpilogueKind::FEATURE_MAJOR_RESIDUAL>
                                                          : launch<T, EpilogueKind::FEATURE_MAJOR>);
    return chosen(problem, block_m, blocks_per_sm, clusters, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment (16 bytes); m, the columns of X, is a multiple of 8, and of Y
// the first `y_m` are written. Strides are in elements.
extern "C" int sparsefront_gathered_sm90_cluster(const void* x, const void* panels, const void* k_blocks, const void* cta_tiles,
                                         const void* outputs, const void* bias, const void* residual, void* y,
                                         long long x_stride, long long residual_stride, long long y_stride,
                                         int k_blocks_of_each, int longer, int bias_type, int activation, int y_row_major,
                                         int is_bfloat16, int m, int y_m, int cta_tile_count, int block_m, int stages, int raster_swizzle,
                                         int splits, int pdl, int prefetch,
                                         int blocks_per_sm, int clusters, void* stream) {
    if (stages < 2 || stages > MOST_STAGES || x_stride >= (1ll << 31)) return cudaErrorInvalidValue;
    Epilogue epilogue{static_cast<const int*>(outputs), bias, bias_type, activation, {}, residual, residual_stride, y, y_stride,
                      y_m, y_row_major};
    std::copy_n(GELU_COEFFICIENTS[activation == GELU_TANH], std::size(epilogue.gelu), epilogue.gelu);
    const Problem problem{x,
                          static_cast<const uint8_t*>(panels),
                          static_cast<const int*>(k_blocks),
                          static_cast<const int2*>(cta_tiles),
                          k_blocks_of_each,
                          longer,
                          epilogue,
                          static_cast<unsigned>(2 * x_stride),
                          m,
                          cta_tile_count,
                          stages,
                          raster_swizzle,
                          splits,
                          pdl,
                          prefetch};
    const auto queue = static_cast<cudaStream_t>(stream);
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, block_m, blocks_per_sm, clusters, queue)
                       : launch<__half>(problem, block_m, blocks_per_sm, clusters, queue);
}
