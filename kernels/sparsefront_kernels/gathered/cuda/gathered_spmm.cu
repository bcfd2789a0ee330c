// Y[N, M] = W[N, K] · X[K, M] + bias[N] for a gathered weight on Hopper's tensor cores (sm_90a), feature-major.
//
// A block of the grid computes 128 outputs x BLOCK_M columns at a time. Its two consumer warpgroups own 64 outputs each;
// further warps load. A stage of the pipeline in shared memory is 64 rows of X, gathered by cp.async (a kept input is one
// contiguous run of BLOCK_M elements), and for each half the weights to those rows, which were packed beforehand as the
// tensor cores read them, so that one bulk copy brings them.
//
// The halves may keep different inputs. Rows come in granules of 16, and each granule is used by one half or by both: a row
// that both keep is loaded once, and no product is spent on a half that does not keep it. See ../README.md.
#include "epilogue.cuh"
#include "hopper.cuh"

namespace {

constexpr int GRANULE = 16;         // rows of X of one tensor core instruction
constexpr int STAGE_GRANULES = 4;
constexpr int STAGE_ROWS = GRANULE * STAGE_GRANULES;
constexpr int ROW_BYTES = 128;      // of a swizzled row of 64 elements
constexpr int GRANULE_BYTES = GRANULE * ROW_BYTES;
constexpr int PANEL_BYTES = STAGE_ROWS * ROW_BYTES;  // of one half
constexpr int MOST_STAGES = 8;

constexpr int STEP_WORDS = STAGE_ROWS + 4;           // rows, uses, begins of panels, padding to 16 bytes
constexpr int OVERLAP = 1, EARLY = 2, PREFETCH = 4;
constexpr uint32_t LAST = 1u << 8;                   // in what a stage says of its use: the item ends here

struct Problem {
    const void* x;                // [K, m], rows `x_stride` bytes apart
    const uint8_t* panels;        // granules of 16 x 64 weights, swizzled
    const int* steps;             // [steps, 68]: 64 rows of X, or -1 for a row of zeros; then the uses of the granules
                                  // (bit g: half 0 uses granule g; bit 4 + g: half 1 does), and where in `panels` the
                                  // granules of half 0 and of half 1 begin
    const int2* pairs;            // first step, number of steps
    int steps_of_each;            // where all pairs have equally many steps, how many; else 0
    Epilogue epilogue;
    unsigned x_stride;
    int m;
    int pair_count;
    int stages;                   // of the pipeline
    int group;                    // pairs that are neighbours in the order of work
    int splits;                   // blocks that share the steps of one item, a cluster; each then has one item only
    int share;                    // blocks, 1, 2 or 4 of a cluster, that work on neighbouring columns of a pair: each loads
                                  // a part of the panels, and all get it
    int overlap;                  // bits: OVERLAP, ...
    int k;
    int panel_granules;
};

// Where a block stands in its cluster: `share` blocks for neighbouring columns times `splits` for the steps.
template <bool SHARE>
__device__ __forceinline__ int column_part(const Problem& problem) {
    return SHARE ? rank_in_cluster() & (problem.share - 1) : 0;
}

template <bool SHARE>
__device__ __forceinline__ int step_part(const Problem& problem) {
    return SHARE ? rank_in_cluster() >> (__ffs(problem.share) - 1) : rank_in_cluster();
}

// The steps of a pair that fall to this block.
template <bool SPLIT, bool SHARE>
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int pair) {
        int2 all = make_int2(pair * problem.steps_of_each, problem.steps_of_each);
        if (problem.steps_of_each == 0) all = problem.pairs[pair];  // one trip to memory more before the first load of X
        first = all.x, count = all.y;
        if constexpr (SPLIT) {
            const int rank = step_part<SHARE>(problem), begin = all.y * rank / problem.splits;
            first += begin, count = all.y * (rank + 1) / problem.splits - begin;
        }
    }
};

// Work is dealt out to clusters, which are the columns of the grid: for each pair as many pieces as groups of columns.
template <int BLOCK_M, bool SHARE>
__device__ __forceinline__ int column_groups(const Problem& problem) {
    const int columns = SHARE ? BLOCK_M * problem.share : BLOCK_M;
    return (problem.m + columns - 1) / columns;
}

// Piece of work number `index`: which pair, and this block's first column.
template <int BLOCK_M, bool SHARE>
struct Item {
    int pair, column;

    __device__ Item(const Problem& problem, int index, int column_groups) {
        const int per_group = problem.group * column_groups;
        const int first = index / per_group * problem.group;
        const int pairs = min(problem.group, problem.pair_count - first);
        const int within = index % per_group;
        pair = first + within % pairs;
        column = (SHARE ? within / pairs * problem.share + column_part<SHARE>(problem) : within / pairs) * BLOCK_M;
    }
};

// Position in the ring of stages.
struct Ring {
    int slot = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ void advance(int stages) {
        if (++slot == stages) {
            slot = 0;
            phase ^= 1;
        }
    }
};

// acc (+)= the products of COUNT granules of a stage; the weights of used granules lie one after the other.
// Each COUNT has straight-line code: where a branch could part fence and product, the compiler makes the products wait
// for one another.
template <typename T, int BLOCK_M, int COUNT>
__device__ __forceinline__ void multiply(float (&acc)[BLOCK_M / 2], uint64_t w, uint64_t x, uint32_t use, int add) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const uint32_t granule = COUNT == STAGE_GRANULES ? i : __ffs(use) - 1;
        wgmma<T, BLOCK_M>(acc, w + i * (GRANULE_BYTES >> 4), x + granule * (GRANULE_BYTES >> 4), i == 0 ? add : 1);
        use &= use - 1;
    }
    wgmma_commit();
}

template <typename T, int BLOCK_M, bool SPLIT, bool SHARE, Ending ENDING>
__device__ __forceinline__ void consume(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                        const volatile uint32_t* slot_uses) {
    constexpr int X_BYTES = BLOCK_M * ROW_BYTES;
    constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    const int half = threadIdx.x / 128;
    const int groups = column_groups<BLOCK_M, SHARE>(problem), lane = threadIdx.x % 32;
    const bool signals = lane < (SHARE ? problem.share : 1);  // a lane for each block that waits for us
    const uint32_t empty_there =
        SHARE ? address_in_cluster(empty, rank_in_cluster() - column_part<SHARE>(problem) + lane % problem.share) : 0;
    const auto release = [&](int slot) {
        if constexpr (SHARE) {
            if (signals) barrier_arrive_in_cluster(empty_there + 8 * slot);
        } else {
            if (signals) barrier_arrive(empty + 8 * slot);
        }
    };
    float acc[BLOCK_M / 2];
    Ring ring;
    for (int index = static_cast<int>(blockIdx.x); index < problem.pair_count * groups; index += static_cast<int>(gridDim.x)) {
        const Item<BLOCK_M, SHARE> item(problem, index, groups);
        const Rows<ENDING> rows(problem.epilogue, item.pair);
        if (!SPLIT) prefetch_residual<T, BLOCK_M>(problem.epilogue, rows, item.column);
        int add = 0, previous = -1;
        uint32_t uses = SPLIT && Range<SPLIT, SHARE>(problem, item.pair).count == 0 ? LAST : 0;
        while (!(uses & LAST)) {
            barrier_wait(full + 8 * ring.slot, ring.phase);
            fence_for_tensor_cores();  // the rows of X were written by threads
            uses = slot_uses[ring.slot];
            const uint32_t use = (uses >> (4 * half)) & 15;
            const uint32_t base = stages + ring.slot * STAGE_BYTES;
            const uint64_t x = operand_descriptor(base, PANEL_BYTES);
            const uint64_t w = operand_descriptor(base + X_BYTES + half * PANEL_BYTES, 0);
            if (use == 15) {  // the same for all threads of the warpgroup
                multiply<T, BLOCK_M, 4>(acc, w, x, use, add);
            } else switch (__popc(use)) {
                case 3: multiply<T, BLOCK_M, 3>(acc, w, x, use, add); break;
                case 2: multiply<T, BLOCK_M, 2>(acc, w, x, use, add); break;
                case 1: multiply<T, BLOCK_M, 1>(acc, w, x, use, add); break;
                default: wgmma_wait<0>();  // nothing is committed here, so the wait below would spare the stage before
            }
            add |= use != 0;
            wgmma_wait<1>();  // the stage before this one has been read
            if (previous >= 0) release(previous);
            previous = ring.slot;
            ring.advance(problem.stages);
        }
        wgmma_wait<0>();
        if (previous >= 0) release(previous);
        if (!add) {
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2; ++i) acc[i] = 0.0f;
        }
        if constexpr (SPLIT) {
            reduce_and_store<T, BLOCK_M, ENDING>(problem.epilogue, rows, item.column, problem.splits, problem.share, stages, acc);
        } else {
            store<T, BLOCK_M, ENDING>(problem.epilogue, rows, item.column, acc);
        }
    }
    if constexpr (!SPLIT && SHARE) cluster_sync_relaxed();  // nobody ends while another may still arrive at its barriers
}

// Walks over the steps of all work of this block, several steps at a time.
template <int BLOCK_M, bool SPLIT, bool SHARE>
struct Cursor {
    int index, groups, left = 0, step = 0, column = 0;

    // Stands on step number `skip` of the block's work.
    __device__ __forceinline__ Cursor(const Problem& problem, int skip)
        : index(static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x)), groups(column_groups<BLOCK_M, SHARE>(problem)) {
        advance(problem, skip);
    }

    __device__ __forceinline__ bool ended(const Problem& problem) const {
        return index >= problem.pair_count * groups;
    }

    __device__ __forceinline__ void advance(const Problem& problem, int steps) {
        while (steps >= left) {
            steps -= left;
            index += static_cast<int>(gridDim.x);
            if (ended(problem)) return;
            const Item<BLOCK_M, SHARE> item(problem, index, groups);
            const Range<SPLIT, SHARE> range(problem, item.pair);
            step = range.first, left = range.count;
            column = item.column;
        }
        step += steps, left -= steps;
    }
};

// The producer warps form teams of TEAM, which fill the stages in turn: the instructions around the copies take as long as
// the copies, and so those of several stages should run side by side.
// The list of a step's rows travels through shared memory as well: it is fetched together with the rows of a step so much
// earlier that the slot of that step has been consumed, and the list thus has landed, when it is needed.
template <typename T, int BLOCK_M, int TEAMS, int TEAM, bool SPLIT, bool SHARE>
struct Producer {
    static constexpr int X_BYTES = BLOCK_M * ROW_BYTES;
    static constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    static constexpr int CHUNKS = BLOCK_M / 8;         // of 16 bytes in a row
    static constexpr int ROWS_AT_ONCE = 32 / CHUNKS;   // by a warp
    static constexpr int VARIANTS = 8 / ROWS_AT_ONCE;  // a row's place among eight decides its swizzle
    static constexpr int WARP_ROWS = STAGE_ROWS / TEAM;
    static constexpr int LIST_WORDS = WARP_ROWS + STEP_WORDS - STAGE_ROWS;
    static constexpr int MOST_LISTS = (MOST_STAGES + TEAMS - 1) / TEAMS;  // of a warp
    using Lists = int[TEAMS * TEAM * MOST_LISTS][LIST_WORDS];

    // Brings into L2 what a step will read. May run before the kernels before this one have ended: the list may then be
    // another's, and so says only what might be worth fetching.
    __device__ __forceinline__ static void prefetch_step(const Problem& problem, int step, int first_row, bool leads,
                                                         int column) {
        const int* list = problem.steps + static_cast<int64_t>(step) * STEP_WORDS;
        const char* x = static_cast<const char*>(problem.x) + column * static_cast<int>(sizeof(T));
        for (int i = threadIdx.x % 32; i < WARP_ROWS; i += 32) {
            const int row = __ldcg(list + first_row + i);
            if (static_cast<unsigned>(row) >= static_cast<unsigned>(problem.k)) continue;
            const char* begin = static_cast<const char*>(row_address(x, row, problem.x_stride));
#pragma unroll
            for (int block = 0; block < BLOCK_M / 64; ++block)
                if (column + block * 64 < problem.m) prefetch_line(begin + block * ROW_BYTES);
        }
        if (leads) {
            const int use = __ldcg(list + STAGE_ROWS), log_share = __ffs(problem.share) - 1, part = column_part<SHARE>(problem);
            for (int half = 0; half < 2; ++half) {
                const int begin = __ldcg(list + STAGE_ROWS + 1 + half), count = __popc((use >> (4 * half)) & 15);
                if (count == 0 || begin < 0 || begin + count > problem.panel_granules) continue;
                const uint32_t bytes = static_cast<uint32_t>(count * GRANULE_BYTES) >> log_share;
                prefetch_bulk(problem.panels + static_cast<int64_t>(begin) * GRANULE_BYTES + part * bytes, bytes);
            }
        }
    }

    __device__ __forceinline__ static void run(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                               volatile uint32_t* slot_uses, Lists& all_lists) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - CONSUMERS / 32;
        const int team = warp / TEAM, first_row = warp % TEAM * WARP_ROWS;
        const int chunk = lane % CHUNKS, sub_row = lane / CHUNKS;
        const bool leads = warp % TEAM == 0 && lane == 0;
        const int depth = (problem.stages + TEAMS - 1) / TEAMS;  // of this warp's lists
        int(*lists)[LIST_WORDS] = all_lists + warp * MOST_LISTS;
        const int word = lane < WARP_ROWS / 4 ? first_row + lane * 4 : STAGE_ROWS;
        const uint32_t word_target = shared_address(lists[0] + min(lane * 4, WARP_ROWS));
        const auto fetch_list = [&](int turn, int step) {
            if (lane <= WARP_ROWS / 4)
                copy_16_bytes(word_target + turn * LIST_WORDS * 4, problem.steps + static_cast<int64_t>(step) * STEP_WORDS + word,
                              16);
        };
        uint32_t offsets[VARIANTS];
#pragma unroll
        for (int i = 0; i < VARIANTS; ++i) {
            const int row = sub_row + i * ROWS_AT_ONCE;
            offsets[i] = chunk / 8 * PANEL_BYTES + (first_row + row) * ROW_BYTES + ((chunk % 8) ^ row) * 16;
        }

        if (problem.steps_of_each == 0) wait_for_kernels_before();  // the cursor reads the pairs
        Cursor<BLOCK_M, SPLIT, SHARE> cursor(problem, team), ahead = cursor;
        if (problem.overlap & PREFETCH && problem.steps_of_each) {
            for (int turn = 0; turn < depth && !ahead.ended(problem); ++turn, ahead.advance(problem, TEAMS))
                prefetch_step(problem, ahead.step, first_row, leads, ahead.column);
            ahead = cursor;
        }
        wait_for_kernels_before();
        for (int turn = 0; turn < depth && !ahead.ended(problem); ++turn, ahead.advance(problem, TEAMS))
            fetch_list(turn, ahead.step);
        wait_for_own_copies();
        __syncwarp();

        int slot = team, turn = 0;
        uint32_t phase = 0;
        for (; !cursor.ended(problem); cursor.advance(problem, TEAMS)) {
            while (slot >= problem.stages) slot -= problem.stages, phase ^= 1;
            const int column = cursor.column + chunk * 8;
            const uint32_t wanted = column < problem.m ? 16 : 0;
            const char* x = static_cast<const char*>(problem.x) + (wanted ? column : 0) * static_cast<int>(sizeof(T));
            const uint32_t base = stages + slot * STAGE_BYTES, ready = full + 8 * slot;
            const int* list = lists[turn];
            barrier_wait(empty + 8 * slot, phase ^ 1);
            if (leads) {
                const int4 use = *reinterpret_cast<const int4*>(list + WARP_ROWS);
                const uint32_t bytes_0 = __popc(use.x & 15) * GRANULE_BYTES;
                const uint32_t bytes_1 = __popc(use.x & 240) * GRANULE_BYTES;
                slot_uses[slot] = use.x | (cursor.left == 1 ? LAST : 0);
                barrier_arrive_expect(ready, bytes_0 + bytes_1);
                const uint8_t* panel_0 = problem.panels + static_cast<int64_t>(use.y) * GRANULE_BYTES;
                const uint8_t* panel_1 = problem.panels + static_cast<int64_t>(use.z) * GRANULE_BYTES;
                if constexpr (!SHARE) {
                    if (bytes_0) copy_bulk(base + X_BYTES, panel_0, bytes_0, ready);
                    if (bytes_1) copy_bulk(base + X_BYTES + PANEL_BYTES, panel_1, bytes_1, ready);
                } else {
                    const int log_share = __ffs(problem.share) - 1, part = column_part<SHARE>(problem);
                    const uint32_t part_0 = bytes_0 >> log_share, part_1 = bytes_1 >> log_share;
                    const uint32_t sharers = ((1u << problem.share) - 1) << (rank_in_cluster() - part);
                    if (part_0)
                        copy_bulk_to_blocks(base + X_BYTES + part * part_0, panel_0 + part * part_0, part_0, ready, sharers);
                    if (part_1)
                        copy_bulk_to_blocks(base + X_BYTES + PANEL_BYTES + part * part_1, panel_1 + part * part_1, part_1,
                                            ready, sharers);
                }
            }
            __syncwarp();
#pragma unroll
            for (int atom = 0; atom < WARP_ROWS / 8; ++atom) {
                int rows[VARIANTS];
                if constexpr (ROWS_AT_ONCE == 1) {
                    *reinterpret_cast<int4*>(rows) = *reinterpret_cast<const int4*>(list + atom * 8);
                    *reinterpret_cast<int4*>(rows + 4) = *reinterpret_cast<const int4*>(list + atom * 8 + 4);
                } else {
#pragma unroll
                    for (int i = 0; i < VARIANTS; ++i) rows[i] = list[atom * 8 + sub_row + i * ROWS_AT_ONCE];
                }
#pragma unroll
                for (int i = 0; i < VARIANTS; ++i) {
                    // where the row is -1, nothing is read
                    copy_16_bytes(base + offsets[i] + atom * 8 * ROW_BYTES, row_address(x, rows[i], problem.x_stride),
                                  rows[i] >= 0 ? wanted : 0);
                }
            }
            __syncwarp();  // every lane has read the list
            if (!ahead.ended(problem)) {
                fetch_list(turn, ahead.step);
                ahead.advance(problem, TEAMS);
            }
            barrier_arrive_after_copies(ready);
            slot += TEAMS;
            if (++turn == depth) turn = 0;
        }
    }
};

template <typename T, int BLOCK_M, int TEAMS, int TEAM, int BLOCKS_PER_SM, bool SPLIT, bool SHARE, Ending ENDING>
__global__ void __launch_bounds__(CONSUMERS + 32 * TEAMS * TEAM, BLOCKS_PER_SM)
    gathered_spmm_kernel(const __grid_constant__ Problem problem) {
    using Loader = Producer<T, BLOCK_M, TEAMS, TEAM, SPLIT, SHARE>;
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * MOST_STAGES];
    __shared__ uint32_t slot_uses[MOST_STAGES];
    __shared__ alignas(16) typename Loader::Lists lists;
    const uint32_t stages = (shared_address(dynamic_shared) + 1023) & ~1023u;  // the swizzle repeats every 1024 bytes
    const uint32_t full = shared_address(barriers), empty = full + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < problem.stages; ++slot) {
            barrier_init(full + 8 * slot, 32 * TEAM + 1);
            barrier_init(empty + 8 * slot, SHARE ? CONSUMERS / 32 * problem.share : CONSUMERS / 32);
        }
        fence_barrier_init();
    }
    __syncwarp();
    if constexpr (SHARE) {
        cluster_sync_relaxed();
    } else {
        __syncthreads();
    }
    if (problem.overlap & EARLY) let_next_kernel_start();
    if (threadIdx.x < CONSUMERS) {
        wait_for_kernels_before();
        if (!(problem.overlap & EARLY)) let_next_kernel_start();
        consume<T, BLOCK_M, SPLIT, SHARE, ENDING>(problem, stages, full, empty, slot_uses);
    } else {
        Loader::run(problem, stages, full, empty, slot_uses, lists);
    }
}

template <typename T, int BLOCK_M, int TEAMS, int TEAM, int BLOCKS_PER_SM, Ending ENDING>
cudaError_t launch(const Problem& problem, int clusters, cudaStream_t stream) {
    const auto kernel = problem.share > 1    ? gathered_spmm_kernel<T, BLOCK_M, TEAMS, TEAM, BLOCKS_PER_SM, false, true, ENDING>
                        : problem.splits > 1 ? gathered_spmm_kernel<T, BLOCK_M, TEAMS, TEAM, BLOCKS_PER_SM, true, false, ENDING>
                                             : gathered_spmm_kernel<T, BLOCK_M, TEAMS, TEAM, BLOCKS_PER_SM, false, false, ENDING>;
    // with fewer stages a team could be two rounds ahead of a slot, and parities tell only one round from the next
    if (problem.stages < TEAMS) return cudaErrorInvalidValue;
    const int stage_bytes = problem.stages * (BLOCK_M * ROW_BYTES + 2 * PANEL_BYTES), bytes = 1024 + stage_bytes;
    if (problem.splits > 1 && stage_bytes < 2 * HALF * BLOCK_M * static_cast<int>(sizeof(float))) return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    const unsigned cluster = problem.splits * problem.share;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {1, cluster, 1};
    }
    if (problem.overlap & OVERLAP) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters, cluster);
    config.blockDim = dim3(CONSUMERS + 32 * TEAMS * TEAM);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

template <typename T, Ending ENDING>
cudaError_t launch(const Problem& problem, int block_m, int blocks_per_sm, int clusters, cudaStream_t stream) {
    switch (block_m * 10 + blocks_per_sm) {
        case 641:
        case 642: return launch<T, 64, 4, 1, 2, ENDING>(problem, clusters, stream);
        case 1281: return launch<T, 128, 4, 2, 1, ENDING>(problem, clusters, stream);
        case 1282:  // no registers are left to add up with
            return problem.splits > 1 ? cudaErrorInvalidValue : launch<T, 128, 2, 1, 2, ENDING>(problem, clusters, stream);
        case 2561: return launch<T, 256, 2, 2, 1, ENDING>(problem, clusters, stream);
        default: return cudaErrorInvalidValue;
    }
}

template <typename T>
cudaError_t launch(const Problem& problem, int block_m, int blocks_per_sm, int clusters, cudaStream_t stream) {
    const Epilogue& epilogue = problem.epilogue;
    const auto chosen = epilogue.activation != NONE || epilogue.residual != nullptr ? launch<T, Ending::ANY>
                        : epilogue.y_row_major                                      ? launch<T, Ending::ROW_MAJOR>
                                                                                    : launch<T, Ending::FEATURE_MAJOR>;
    return chosen(problem, block_m, blocks_per_sm, clusters, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment (16 bytes); m, the columns of X, is a multiple of 8, and of Y
// the first `y_m` are written. Strides are in elements.
extern "C" int sparsefront_gathered_spmm(const void* x, const void* panels, const void* steps, const void* pairs,
                                         const void* outputs, const void* bias, const void* residual, void* y,
                                         long long x_stride, long long residual_stride, long long y_stride,
                                         int steps_of_each, int bias_type, int activation, int y_row_major,
                                         int is_bfloat16, int m, int y_m, int pair_count, int block_m, int stages, int group,
                                         int splits, int share, int overlap, int k, int panel_granules,
                                         int blocks_per_sm, int clusters, void* stream) {
    if ((share != 1 && share != 2 && share != 4) || (share > 1 && splits > 1)) return cudaErrorInvalidValue;
    if (stages < 2 || stages > MOST_STAGES || x_stride >= (1ll << 31)) return cudaErrorInvalidValue;
    const Epilogue epilogue{static_cast<const int*>(outputs), bias, bias_type, activation, residual, residual_stride, y,
                            y_stride, y_m, y_row_major};
    const Problem problem{x,
                          static_cast<const uint8_t*>(panels),
                          static_cast<const int*>(steps),
                          static_cast<const int2*>(pairs),
                          steps_of_each,
                          epilogue,
                          static_cast<unsigned>(2 * x_stride),
                          m,
                          pair_count,
                          stages,
                          group,
                          splits,
                          share,
                          overlap,
                          k,
                          panel_granules};
    const auto queue = static_cast<cudaStream_t>(stream);
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, block_m, blocks_per_sm, clusters, queue)
                       : launch<__half>(problem, block_m, blocks_per_sm, clusters, queue);
}
