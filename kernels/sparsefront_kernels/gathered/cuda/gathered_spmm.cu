// Y[N, M] = W[N, K] · X[K, M] + bias[N] for a gathered weight on Hopper's tensor cores (sm_90a), feature-major.
//
// A block of the grid computes 128 outputs x BLOCK_M columns at a time. Its two consumer warpgroups own 64 outputs each;
// further warps load. A stage of the pipeline in shared memory is 64 rows of X, gathered by cp.async (a kept input is one
// contiguous run of BLOCK_M elements), and for each half the weights to those rows, which were packed beforehand as the
// tensor cores read them, so that one bulk copy brings them.
//
// The halves may keep different inputs. Rows come in granules of 16, and each granule is used by one half or by both: a row
// that both keep is loaded once, and no product is spent on a half that does not keep it. See ../README.md.
#include <algorithm>
#include <iterator>

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
constexpr uint32_t LAST = 1u << 8;                   // in what a stage says of its use: the item ends here

struct Problem {
    const void* x;                // [K, m], rows `x_stride` bytes apart
    const uint8_t* panels;        // granules of 16 x 64 weights, swizzled
    const int* steps;             // [steps, 68]: 64 rows of X, or -1 for a row of zeros; then the uses of the granules
                                  // (bit g: half 0 uses granule g; bit 4 + g: half 1 does), and where in `panels` the
                                  // granules of half 0 and of half 1 begin
    const int2* pairs;            // first step, number of steps
    int steps_of_each;            // where pairs have equally many steps, or the first `longer` one more, how many; else 0
    int longer;
    Epilogue epilogue;
    unsigned x_stride;
    int m;
    int pair_count;
    int stages;                   // of the pipeline
    int group;                    // pairs that are neighbours in the order of work
    int splits;                   // blocks that share the steps of one item, a cluster; each then has one item only
    int overlap;                  // whether blocks may start before the kernels before this one in the stream have ended
    int prefetch;                 // what such blocks bring into L2 meanwhile: nothing where negative; else lists, and panels
                                  // where all halves of all pairs use this many granules, one after the other
};

// The steps of a pair that fall to this block.
template <bool SPLIT>
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int pair) {
        int2 all = make_int2(pair * problem.steps_of_each + min(pair, problem.longer),
                             problem.steps_of_each + (pair < problem.longer));
        if (problem.steps_of_each == 0) {  // one trip to memory more before the first load of X
            all = problem.pairs[pair];
            all.x = uniform(all.x), all.y = uniform(all.y);
        }
        first = all.x, count = all.y;
        if constexpr (SPLIT) {
            const int rank = rank_in_cluster(), begin = all.y * rank / problem.splits;
            first += begin, count = all.y * (rank + 1) / problem.splits - begin;
        }
    }
};

// Work is dealt out to the columns of the grid, which are blocks or clusters of them: for each pair as many pieces as blocks
// of columns.
template <int BLOCK_M>
__device__ __forceinline__ int column_blocks(const Problem& problem) {
    return (problem.m + BLOCK_M - 1) / BLOCK_M;
}

// Piece of work number `index`: which pair, and its first column.
template <int BLOCK_M>
struct Item {
    int pair, column;

    __device__ Item(const Problem& problem, int index, int column_blocks) {
        const int per_group = problem.group * column_blocks;
        const int first = index / per_group * problem.group;
        const int pairs = min(problem.group, problem.pair_count - first);
        const int within = index % per_group;
        pair = first + within % pairs;
        column = within / pairs * BLOCK_M;
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
__device__ __forceinline__ void multiply(float (&acc)[BLOCK_M / 2], uint32_t w, uint32_t x, uint32_t use, int add) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const uint32_t granule = COUNT == STAGE_GRANULES ? i : __ffs(use) - 1;
        wgmma<T, BLOCK_M>(acc, operand_descriptor(w + i * (GRANULE_BYTES >> 4)),
                          operand_descriptor(x + granule * (GRANULE_BYTES >> 4)), i == 0 ? add : 1);
        use &= use - 1;
    }
    wgmma_commit();
}

template <typename T, int BLOCK_M, bool SPLIT, Ending ENDING>
__device__ __forceinline__ void consume(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                        uint32_t received, uint32_t slot_uses) {
    constexpr int X_BYTES = BLOCK_M * ROW_BYTES;
    constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    const uint32_t half = uniform(threadIdx.x / 128);
    const uint32_t first_x = operand_place(stages, PANEL_BYTES), first_w = operand_place(stages + X_BYTES + half * PANEL_BYTES, 0);
    const bool signals = threadIdx.x % 32 == 0;
    const int blocks = column_blocks<BLOCK_M>(problem), items = problem.pair_count * blocks;
    float acc[BLOCK_M / 2];
    Ring ring;
    int index = static_cast<int>(blockIdx.x);
    Item<BLOCK_M> item(problem, index, blocks);
    Rows<ENDING> rows;
    rows.find(problem.epilogue, item.pair);
    while (true) {
        rows.load_bias(problem.epilogue);
        int add = 0, previous = -1;
        if constexpr (begins_with_residual(ENDING)) {
            begin_with_residual<T, BLOCK_M>(problem.epilogue, rows, item.column, acc);
            add = 1;
        }
        if (!SPLIT || Range<SPLIT>(problem, item.pair).count > 0) {
            while (true) {
                barrier_wait(full + 8 * ring.slot, ring.phase);
                const uint32_t uses = uniform(load_word(slot_uses + 4 * ring.slot));
                fence_for_tensor_cores();  // the rows of X were written by threads
                const uint32_t use = (uses >> (4 * half)) & 15;
                const uint32_t x = first_x + ring.slot * (STAGE_BYTES >> 4), w = first_w + ring.slot * (STAGE_BYTES >> 4);
                if (use == 15) {
                    multiply<T, BLOCK_M, 4>(acc, w, x, use, add);
                    wgmma_wait<1>();  // the stage before this one has been read
                } else {
                    switch (__popc(use)) {
                        case 3: multiply<T, BLOCK_M, 3>(acc, w, x, use, add); break;
                        case 2: multiply<T, BLOCK_M, 2>(acc, w, x, use, add); break;
                        case 1: multiply<T, BLOCK_M, 1>(acc, w, x, use, add); break;
                    }
                    wgmma_wait<0>();  // where halves keep different inputs, loads take longer than products: free the stage
                }
                add |= use != 0;
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
        const int column = item.column;
        const Rows<ENDING> found = rows;
        index += static_cast<int>(gridDim.x);
        if (index < items) {
            item = Item<BLOCK_M>(problem, index, blocks);
            rows.find(problem.epilogue, item.pair);
            prefetch_residual<T, BLOCK_M>(problem.epilogue, rows, item.column);
        }
        wgmma_wait<0>();
        if (previous >= 0 && signals) barrier_arrive(empty + 8 * previous);
        if (!add) {  // else the first product has written over what was there
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2; ++i) acc[i] = 0.0f;
        }
        if constexpr (SPLIT) {
            reduce_and_store<T, BLOCK_M, ENDING>(problem.epilogue, found, column, problem.splits, stages, received, acc);
        } else {
            store<T, BLOCK_M, ENDING>(problem.epilogue, found, column, acc);
        }
        if (index >= items) break;
    }
}

// Walks over the steps of all work of this block, several steps at a time.
template <int BLOCK_M, bool SPLIT>
struct Cursor {
    int index, blocks, left = 0, step = 0, column = 0;

    // Stands on step number `skip` of the block's work.
    __device__ __forceinline__ Cursor(const Problem& problem, int skip)
        : index(static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x)), blocks(column_blocks<BLOCK_M>(problem)) {
        advance(problem, skip);
    }

    __device__ __forceinline__ bool ended(const Problem& problem) const {
        return index >= problem.pair_count * blocks;
    }

    __device__ __forceinline__ void advance(const Problem& problem, int steps) {
        while (steps >= left) {
            steps -= left;
            index += static_cast<int>(gridDim.x);
            if (ended(problem)) return;
            const Item<BLOCK_M> item(problem, index, blocks);
            const Range<SPLIT> range(problem, item.pair);
            step = range.first, left = range.count;
            column = item.column;
        }
        step += steps, left -= steps;
    }
};

// The producer warps form teams of TEAM, which fill the stages in turn: the instructions around the copies take as long as
// the copies, and so those of several stages should run side by side.
// The list of a step's rows travels through shared memory as well: it is fetched behind the rows of a step so much earlier
// that the slot of the step after that one has been consumed, and the list thus has landed, when it is needed.
template <typename T, int BLOCK_M, int TEAMS, int TEAM, bool SPLIT>
struct Producer {
    static constexpr int X_BYTES = BLOCK_M * ROW_BYTES;
    static constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    static constexpr int CHUNKS = BLOCK_M / 8;         // of 16 bytes in a row
    static constexpr int ROWS_AT_ONCE = 32 / CHUNKS;   // by a warp
    static constexpr int WARP_ROWS = STAGE_ROWS / TEAM;
    static constexpr int LANE_ROWS = WARP_ROWS / ROWS_AT_ONCE;  // neighbours in the list, of a lane
    static constexpr int LIST_WORDS = WARP_ROWS + STEP_WORDS - STAGE_ROWS;
    static constexpr int MOST_LISTS = (MOST_STAGES + TEAMS - 1) / TEAMS + 1;  // of a warp
    using Lists = int[TEAMS * TEAM * MOST_LISTS][LIST_WORDS];

    // Brings into L2 what a step of equally long pairs reads of the weight, and reads nothing itself.
    __device__ __forceinline__ static void prefetch_step(const Problem& problem, int step, bool leads) {
        const int* list = problem.steps + static_cast<int64_t>(step) * STEP_WORDS;
        if (threadIdx.x % 32 < (STEP_WORDS + 31) / 32) prefetch_line(list + threadIdx.x % 32 * 32);
        if (!leads || problem.prefetch == 0) return;
        const int pair = step / problem.steps_of_each, first = step % problem.steps_of_each * STAGE_GRANULES;
        const uint32_t bytes = min(STAGE_GRANULES, problem.prefetch - first) * GRANULE_BYTES;
        for (int half = 0; half < 2; ++half) {
            const int64_t granule = static_cast<int64_t>(pair * 2 + half) * problem.prefetch + first;
            prefetch_bulk(problem.panels + granule * GRANULE_BYTES, bytes);
        }
    }

    __device__ __forceinline__ static void run(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                               uint32_t slot_uses, Lists& all_lists) {
        const int lane = threadIdx.x % 32, warp = static_cast<int>(uniform(threadIdx.x / 32)) - CONSUMERS / 32;
        const int team = warp / TEAM, first_row = warp % TEAM * WARP_ROWS;
        const int chunk = lane % CHUNKS, lane_row = lane / CHUNKS * LANE_ROWS;
        const bool leads = warp % TEAM == 0 && lane == 0;
        const int depth = (problem.stages + TEAMS - 1) / TEAMS + 1;  // of this warp's lists
        int(*lists)[LIST_WORDS] = all_lists + warp * MOST_LISTS;
        const int word = lane < WARP_ROWS / 4 ? first_row + lane * 4 : STAGE_ROWS;
        const uint32_t word_target = shared_address(lists[0] + min(lane * 4, WARP_ROWS));
        const auto fetch_list = [&](int turn, int step) {
            if (lane <= WARP_ROWS / 4)
                copy_16_bytes(word_target + turn * LIST_WORDS * 4, problem.steps + static_cast<int64_t>(step) * STEP_WORDS + word,
                              16);
        };
        uint32_t offsets[8];  // a row's place among eight decides its swizzle
#pragma unroll
        for (int i = 0; i < 8; ++i)
            offsets[i] = kept(chunk / 8 * PANEL_BYTES + (first_row + lane_row + i) * ROW_BYTES + ((chunk % 8) ^ i) * 16);

        if (problem.steps_of_each == 0) {  // the cursor reads the pairs
            const Item<BLOCK_M> first(problem, static_cast<int>(blockIdx.x), column_blocks<BLOCK_M>(problem));
            prefetch_line(problem.pairs + first.pair);
            wait_for_kernels_before();
        }
        Cursor<BLOCK_M, SPLIT> cursor(problem, team), ahead = cursor;
        if (problem.steps_of_each != 0 && problem.prefetch >= 0) {
            for (int turn = 0; turn < depth && !ahead.ended(problem); ++turn, ahead.advance(problem, TEAMS))
                prefetch_step(problem, ahead.step, leads);
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
            const char* x = kept(static_cast<const char*>(problem.x) + (wanted ? column : 0) * static_cast<int>(sizeof(T)));
            const uint32_t base = stages + slot * STAGE_BYTES, ready = full + 8 * slot;
            const int* list = lists[turn];
            barrier_wait(empty + 8 * slot, phase ^ 1);  // and the list has landed
            const int4 use = *reinterpret_cast<const int4*>(list + WARP_ROWS);
            const uint32_t uses = uniform(use.x), begin_0 = uniform(use.y), begin_1 = uniform(use.z);
            const uint32_t bytes_0 = __popc(uses & 15) * GRANULE_BYTES, bytes_1 = __popc(uses & 240) * GRANULE_BYTES;
            const uint8_t* panel_0 = problem.panels + static_cast<int64_t>(begin_0) * GRANULE_BYTES;
            const uint8_t* panel_1 = problem.panels + static_cast<int64_t>(begin_1) * GRANULE_BYTES;
#pragma unroll
            for (int atom = 0; atom < LANE_ROWS / 8; ++atom) {
                int rows[8];
                *reinterpret_cast<int4*>(rows) = *reinterpret_cast<const int4*>(list + lane_row + atom * 8);
                *reinterpret_cast<int4*>(rows + 4) = *reinterpret_cast<const int4*>(list + lane_row + atom * 8 + 4);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    // where the row is -1, nothing is read
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
            __syncwarp();  // every lane has read the list
            if (!ahead.ended(problem)) {
                fetch_list(turn, ahead.step);
                ahead.advance(problem, TEAMS);
            }
            slot += TEAMS;
            if (++turn == depth) turn = 0;
        }
    }
};

template <typename T, int BLOCK_M, int TEAMS, int TEAM, int BLOCKS_PER_SM, bool SPLIT, Ending ENDING>
__global__ void __launch_bounds__(CONSUMERS + 32 * TEAMS * TEAM, BLOCKS_PER_SM)
    gathered_spmm_kernel(const __grid_constant__ Problem problem) {
    using Loader = Producer<T, BLOCK_M, TEAMS, TEAM, SPLIT>;
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * MOST_STAGES + 1];
    __shared__ uint32_t uses_of_slots[MOST_STAGES];
    __shared__ alignas(16) typename Loader::Lists lists;
    const uint32_t stages = uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // the swizzle repeats every 1024 bytes
    const uint32_t full = uniform(shared_address(barriers)), empty = full + 8 * MOST_STAGES, received = empty + 8 * MOST_STAGES;
    const uint32_t slot_uses = uniform(shared_address(uses_of_slots));
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < problem.stages; ++slot) {
            barrier_init(full + 8 * slot, 32 * TEAM + 1);
            barrier_init(empty + 8 * slot, CONSUMERS / 32);
        }
        if (SPLIT) barrier_init(received, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (uniform(threadIdx.x / 32) < CONSUMERS / 32) {
        wait_for_kernels_before();
        let_next_kernel_start();
        consume<T, BLOCK_M, SPLIT, ENDING>(problem, stages, full, empty, received, slot_uses);
    } else {
        Loader::run(problem, stages, full, empty, slot_uses, lists);
    }
}

template <typename T, int BLOCK_M, int TEAMS, int TEAM, int BLOCKS_PER_SM, Ending ENDING>
cudaError_t launch(const Problem& problem, int clusters, cudaStream_t stream) {
    constexpr auto one_block = gathered_spmm_kernel<T, BLOCK_M, TEAMS, TEAM, BLOCKS_PER_SM, false, ENDING>;
    auto kernel = one_block;
    if constexpr (!begins_with_residual(ENDING)) {
        if (problem.splits > 1) kernel = gathered_spmm_kernel<T, BLOCK_M, TEAMS, TEAM, BLOCKS_PER_SM, true, ENDING>;
    }
    if (problem.splits > 1 && kernel == one_block) return cudaErrorInvalidValue;
    // with fewer stages a team could be two rounds ahead of a slot, and parities tell only one round from the next
    if (problem.stages < TEAMS) return cudaErrorInvalidValue;
    const int stage_bytes = problem.stages * (BLOCK_M * ROW_BYTES + 2 * PANEL_BYTES), bytes = 1024 + stage_bytes;
    const int pieces = (BLOCK_M / 32 + problem.splits - 1) / problem.splits;  // that a block of several adds up
    if (stage_bytes < pieces * (problem.splits - 1) * CONSUMERS * 64) return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    const unsigned cluster = problem.splits;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {1, cluster, 1};
    }
    if (problem.overlap) {
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
        case 642: return launch<T, 64, 2, 2, 2, ENDING>(problem, clusters, stream);
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
    const bool activates = epilogue.activation != NONE;
    const bool adds = epilogue.residual != nullptr && problem.splits == 1;  // blocks that split steps add it at the end
    const auto chosen = epilogue.y_row_major ? (activates ? launch<T, Ending::ROW_MAJOR_ACTIVATED>
                                                : adds    ? launch<T, Ending::ROW_MAJOR_RESIDUAL>
                                                          : launch<T, Ending::ROW_MAJOR>)
                                             : (activates ? launch<T, Ending::FEATURE_MAJOR_ACTIVATED>
                                                : adds    ? launch<T, Ending::FEATURE_MAJOR_RESIDUAL>
                                                          : launch<T, Ending::FEATURE_MAJOR>);
    return chosen(problem, block_m, blocks_per_sm, clusters, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment (16 bytes); m, the columns of X, is a multiple of 8, and of Y
// the first `y_m` are written. Strides are in elements.
extern "C" int sparsefront_gathered_spmm(const void* x, const void* panels, const void* steps, const void* pairs,
                                         const void* outputs, const void* bias, const void* residual, void* y,
                                         long long x_stride, long long residual_stride, long long y_stride,
                                         int steps_of_each, int longer, int bias_type, int activation, int y_row_major,
                                         int is_bfloat16, int m, int y_m, int pair_count, int block_m, int stages, int group,
                                         int splits, int overlap, int prefetch,
                                         int blocks_per_sm, int clusters, void* stream) {
    if (stages < 2 || stages > MOST_STAGES || x_stride >= (1ll << 31)) return cudaErrorInvalidValue;
    Epilogue epilogue{static_cast<const int*>(outputs), bias, bias_type, activation, {}, residual, residual_stride, y, y_stride,
                      y_m, y_row_major};
    std::copy_n(GELU_COEFFICIENTS[activation == GELU_TANH], std::size(epilogue.gelu), epilogue.gelu);
    const Problem problem{x,
                          static_cast<const uint8_t*>(panels),
                          static_cast<const int*>(steps),
                          static_cast<const int2*>(pairs),
                          steps_of_each,
                          longer,
                          epilogue,
                          static_cast<unsigned>(2 * x_stride),
                          m,
                          pair_count,
                          stages,
                          group,
                          splits,
                          overlap,
                          prefetch};
    const auto queue = static_cast<cudaStream_t>(stream);
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, block_m, blocks_per_sm, clusters, queue)
                       : launch<__half>(problem, block_m, blocks_per_sm, clusters, queue);
}
