// Consumer warpgroups of the blocked kernel.
#pragma once

#include "blocked_work.cuh"
#include "../../cuda/rounded_epilogue.cuh"
#include "../../cuda/shared_sums.cuh"

namespace {

// Epilogue of the blocked kernel: Y = activation(rounded(sums + bias)) + residual, a quarter (64 outputs x 64 columns)
// at a time, from registers through shared memory, then a TMA store.
// Shared-memory buffers of a consumer warpgroup; quarters alternate between them.
struct Quarters {
    uint32_t buffers, landed;  // buffers; mbarriers for the residual in each
    uint32_t name;             // named barrier of the warpgroup
    bool leads;                // this thread issues the warpgroup's TMA copies
    int turn = 0;
    uint32_t phases = 0;       // bit b: phase of buffer b's mbarrier

    __device__ __forceinline__ uint32_t buffer(int which) const { return buffers + which * QUARTER_BYTES; }
};

// TMA coordinates of 64 columns x 64 outputs of Y.
struct Box {
    int inner, outer;

    __device__ __forceinline__ Box(const Epilogue& epilogue, int column, int first_output)
        : inner(epilogue.y_row_major ? first_output : column), outer(epilogue.y_row_major ? column : first_output) {}
};

__device__ __forceinline__ void load_residual(const Problem& problem, const Quarters& quarters, int which, int column,
                                              int first_output) {
    const Box box(problem.epilogue, column, first_output);
    const uint32_t landed = quarters.landed + 8 * which;
    barrier_arrive_expect(landed, QUARTER_BYTES);
    copy_box(quarters.buffer(which), &problem.residual, box.inner, box.outer, landed);
}

// Starts loading the residual of a tile's first quarters into their buffers, to overlap with the main loop.
__device__ __forceinline__ void load_first_residuals(const Problem& problem, const Quarters& quarters, int column, int groups,
                                                     int first_output) {
    if (problem.epilogue.residual == nullptr || first_output < 0) return;
    if (quarters.leads) {
        wait_for_reads_of_stores<0>();
        for (int q = 0; q < min(groups, QUARTER_BUFFERS); ++q)
            load_residual(problem, quarters, (quarters.turn + q) % QUARTER_BUFFERS, column + q * GROUP, first_output);
    }
    __syncwarp();
}

// Adds two residual values to two rounded sums.
template <typename T>
__device__ __forceinline__ uint32_t with_residual(uint32_t both, uint32_t residual, bool relu_last) {
    const uint32_t sum = sum_of_two<T>(both, residual);
    return relu_last ? relu_of_two<T>(sum) : sum;
}

// Adds four 8 x 8 blocks of the residual to those that `store` handles at a time.
template <typename T>
__device__ __forceinline__ void add_blocks(uint32_t* v, const uint4& residual, bool relu_last) {
    v[0] = with_residual<T>(v[0], residual.x, relu_last), v[4] = with_residual<T>(v[4], residual.y, relu_last);
    v[1] = with_residual<T>(v[1], residual.z, relu_last), v[5] = with_residual<T>(v[5], residual.w, relu_last);
}

// Stores a quarter of a feature-major Y whose rows are not 16-byte aligned, so TMA cannot. A warp stores one row of 64
// columns at a time.
__device__ __forceinline__ void store_by_threads(const Epilogue& epilogue, uint32_t buffer, int column, int first_output) {
    if (first_output < 0) return;
    const int lane = threadIdx.x % 32;
    const bool pairs = epilogue.y_stride % 2 == 0;
    uint16_t* y = static_cast<uint16_t*>(epilogue.y) + first_output * epilogue.y_stride;
    for (int row = threadIdx.x / 32 % 4; row < HALF; row += 4) {
        uint16_t* to = y + row * epilogue.y_stride;
        const uint32_t from = buffer + row * 128;
        if (pairs) {
            const int at = column + 2 * lane;
            const uint32_t both = load_word(from + (lane / 4 ^ row % 8) * 16 + lane % 4 * 4);
            if (at < epilogue.m) *reinterpret_cast<uint32_t*>(to + at) = both;
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int in_row = lane + 32 * i, at = column + in_row;
                uint16_t one;
                asm volatile("ld.shared.b16 %0, [%1];" : "=h"(one) : "r"(from + (in_row / 8 ^ row % 8) * 16 + in_row % 8 * 2) : "memory");
                if (at < epilogue.m) to[at] = one;
            }
        }
    }
}

// Stores the first `groups` quarters of the tile.
template <typename T, int WIDTH>
__device__ __forceinline__ void store(const Problem& problem, Quarters& quarters, const float (&acc)[WIDTH / 2],
                                      const float (&bias)[2], int column, int groups, int first_output, bool any) {
    const Epilogue& epilogue = problem.epilogue;
    const bool adds = epilogue.residual != nullptr && first_output >= 0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // A warp moves four 8 x 8 blocks at a time: two blocks of eight outputs for eight columns, then the same outputs
    // for the next eight columns. This lane passes the address of row `row` of block `block`.
    const int row = lane % 8, block = lane / 8, output_eight = 2 * warp + block % 2, column_eight = block / 2;
#pragma unroll
    for (int q = 0; q < WIDTH / GROUP; ++q) {
        if (q >= groups) break;
        Quarter<T> quarter(acc + q * 32, bias, any, epilogue);
        const int which = quarters.turn;
        const uint32_t buffer = quarters.buffer(which);
        if (adds) {
            barrier_wait(quarters.landed + 8 * which, quarters.phases >> which & 1);
            quarters.phases ^= 1 << which;
        } else {
            if (quarters.leads) wait_for_reads_of_stores<QUARTER_BUFFERS - 1>();
            warpgroup_sync(quarters.name);
        }
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {  // pairs of 8-column blocks
            uint32_t* v = quarter.v + pair / 2 * 8 + pair % 2 * 2;  // v[0], v[1]: the thread's first output; v[4], v[5]: its second
            if (epilogue.y_row_major) {
                const uint32_t address = buffer + ((2 * pair + column_eight) * 8 + row) * 128 + (output_eight ^ row) * 16;
                if (adds) add_blocks<T>(v, load_transposed_blocks(address), problem.relu_last);
                store_transposed_blocks(address, v[0], v[4], v[1], v[5]);
            } else {
                const uint32_t address = buffer + (output_eight * 8 + row) * 128 + ((2 * pair + column_eight) ^ row) * 16;
                if (adds) add_blocks<T>(v, load_blocks(address), problem.relu_last);
                store_blocks(address, v[0], v[4], v[1], v[5]);
            }
        }
        fence_for_tensor_cores();  // TMA reads through the async proxy too
        warpgroup_sync(quarters.name);
        if (problem.y_by_threads) {
            store_by_threads(epilogue, buffer, column + q * GROUP, first_output);
            warpgroup_sync(quarters.name);  // before the buffer is reused, for a residual or the next quarter
        }
        if (quarters.leads) {
            if (first_output >= 0 && !problem.y_by_threads) {
                const Box box(epilogue, column + q * GROUP, first_output);
                store_box(&problem.y, box.inner, box.outer, buffer);
            }
            commit_stores();
            if (adds && q + QUARTER_BUFFERS < groups) {
                wait_for_reads_of_stores<0>();
                load_residual(problem, quarters, which, column + (q + QUARTER_BUFFERS) * GROUP, first_output);
            }
        }
        __syncwarp();
        quarters.turn = (which + 1) % QUARTER_BUFFERS;
    }
}

// Split-K: CTAs that share a work tile each store partial sums to global memory. A second kernel adds them in a fixed
// order and finishes Y, so equal operands give bit-identical results.
constexpr int EIGHTS = GROUP / 8;               // blocks of eight columns per unit
constexpr int EIGHT_FLOATS = CONSUMERS * 4;     // a thread holds four sums of each
constexpr int UNIT_FLOATS = EIGHTS * EIGHT_FLOATS;
constexpr int CUT_COLUMNS = 8;                  // columns per CTA of the second kernel

// Stores the partial sums in the threads' accumulator layout. any: whether there were products; if not, acc is
// uninitialized and zeros are stored.
template <int WIDTH>
__device__ __forceinline__ void leave_sums(float* sums, int unit, int groups, const float (&acc)[WIDTH / 2], bool any) {
    float* to = sums + static_cast<int64_t>(unit) * UNIT_FLOATS + threadIdx.x * 4;
#pragma unroll
    for (int eight = 0; eight < WIDTH / 8; ++eight) {
        if (eight / EIGHTS >= groups) return;
        const float* v = acc + eight * 4;
        *reinterpret_cast<float4*>(to + eight * EIGHT_FLOATS) = any ? make_float4(v[0], v[1], v[2], v[3]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

// Shared-memory buffer for a half's eight columns of Y. Row-major: 128 bytes per column, swizzled against bank
// conflicts; feature-major: 16 bytes per output.
struct Part {
    uint32_t buffer;
    bool by_row;

    __device__ __forceinline__ uint32_t by_column(int column, int output_eight) const {
        return buffer + column * 128 + (output_eight ^ column % 8) * 16;
    }
    __device__ __forceinline__ uint32_t by_output(int output) const { return buffer + output * 16; }
};

// Stores a half's eight columns of Y from shared memory; each of 64 threads stores 16 bytes.
template <typename T>
__device__ __forceinline__ void store_part(const Problem& problem, const Part& part, int column, int first_output) {
    const Epilogue& epilogue = problem.epilogue;
    const int chunk = threadIdx.x % 128;
    const int outer = part.by_row ? chunk / 8 : chunk, inner = part.by_row ? chunk % 8 : 0;
    const long long row = part.by_row ? column + outer : first_output + outer;
    const int at = (part.by_row ? first_output : column) + inner * 8;
    if (chunk >= HALF || first_output < 0 || (part.by_row ? row : at) >= epilogue.m) return;
    const float4 bits = load_16_bytes(part.by_row ? part.by_column(outer, inner) : part.by_output(outer));
    uint4 v = reinterpret_cast<const uint4&>(bits);
    if (epilogue.residual != nullptr) {
        const T* residual = static_cast<const T*>(epilogue.residual) + row * epilogue.residual_stride + at;
        const uint4 more = *reinterpret_cast<const uint4*>(residual);
        v.x = with_residual<T>(v.x, more.x, problem.relu_last), v.y = with_residual<T>(v.y, more.y, problem.relu_last);
        v.z = with_residual<T>(v.z, more.z, problem.relu_last), v.w = with_residual<T>(v.w, more.w, problem.relu_last);
    }
    T* y = static_cast<T*>(epilogue.y) + row * epilogue.y_stride + at;
    if (!problem.y_by_threads) {
        __stcs(reinterpret_cast<uint4*>(y), v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (at + i < epilogue.m) y[i] = reinterpret_cast<const T*>(&v)[i];
    }
}

// Adds up the partial sums of a split tile, in the order of their k-blocks, and finishes eight of its columns.
template <typename T>
__device__ __forceinline__ void finish_columns(const Problem& problem, int cut_tile, int first_column, uint32_t shared) {
    const int half = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int4 tile = load_early(problem.cut_tiles + cut_tile);
    const int first_output = load_early(problem.outputs + 2 * tile.x + half), column = tile.y + first_column;
    if (first_output >= -1) pdl_wait();  // always true; without this branch the compiler would sink the loads below the wait
    if (column >= problem.m) return;
    const float* from = problem.sums + static_cast<int64_t>(tile.z) * UNIT_FLOATS + first_column / 8 * EIGHT_FLOATS + threadIdx.x * 4;
    float bias[2];
    const float4 sums = add_pieces(from, tile.w, static_cast<int64_t>(problem.piece_units) * UNIT_FLOATS, [&] {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const int output = first_output < 0 ? -1 : first_output + warp * 16 + lane / 4 + p * 8;
            bias[p] = bias_of(problem.epilogue, load_bias(problem.epilogue, output));
        }
    });
    // two neighboring columns of each of the thread's two outputs
    uint32_t v[2] = {packed<T>(sums.x + bias[0], sums.y + bias[0]), packed<T>(sums.z + bias[1], sums.w + bias[1])};
    activate<T>(v, problem.epilogue);
    const Part part{shared + half * CUT_COLUMNS * HALF * 2, problem.epilogue.y_row_major != 0};
    const int row = lane % 8, output_eight = 2 * warp + lane / 8 % 2;
    if (part.by_row) {
        store_two_transposed_blocks(part.by_column(row, output_eight), v[0], v[1]);
    } else {
        store_two_blocks(part.by_output(output_eight * 8 + row), v[0], v[1]);
    }
    warpgroup_sync(1 + half);
    store_part<T>(problem, part, column, first_output);
}

// Pipeline stages and their mbarriers, as a consumer warpgroup uses them.
struct Stages {
    uint32_t first, full, empty, slot_uses;
    uint32_t half;
    int cluster;
    Ring ring;

    // Releases a slot to the producers of all CTAs of the cluster, since each multicasts weights into it.
    __device__ __forceinline__ void release(int slot) const {
        const int lane = threadIdx.x % 32;
        if (cluster == 1) {
            if (lane == 0) barrier_arrive(empty + 8 * slot);
        } else if (lane < cluster) {
            barrier_arrive_in_cluster(empty + 8 * slot, lane);
        }
    }
};

// acc (+)= the products of one pipeline stage: WIDTH columns x 64 inputs x this half's 64 outputs.
template <typename T, typename X, Weights WEIGHTS, int WIDTH>
__device__ __forceinline__ void multiply(float (&acc)[WIDTH / 2], uint32_t stage, uint32_t half, int add) {
    const uint32_t panel = stage + X_BYTES + half * PANEL_BYTES<WEIGHTS>;
    if constexpr (WEIGHTS == Weights::ALL) {
        wgmma_fence();
#pragma unroll
        for (int sixteen = 0; sixteen < K_BLOCK / 16; ++sixteen)
            wgmma<T, WIDTH, K_MAJOR, X::ORDER>(acc, k_major_descriptor<128>(panel + sixteen * 32), X::descriptor(stage, sixteen),
                                               sixteen == 0 ? add : 1);
    } else {
        const uint32_t places = load_word(panel + HALVED_VALUE_BYTES + threadIdx.x % 128 * 4);
        __syncwarp();  // all lanes have read their metadata before one lane releases the stage
        wgmma_fence();
        sparse_wgmma<T, WIDTH, 0, X::ORDER>(acc, k_major_descriptor<64>(panel), X::descriptor(stage, 0), places, add);
        sparse_wgmma<T, WIDTH, 1, X::ORDER>(acc, k_major_descriptor<64>(panel + 32), X::descriptor(stage, 2), places, 1);
    }
    wgmma_commit();
}

// Accumulates the k-blocks of a work tile that this half uses. Returns whether there were any; if not, acc is
// uninitialized.
template <typename T, typename X, Weights WEIGHTS, int WIDTH>
__device__ __forceinline__ int add_up(Stages& s, int k_blocks, float (&acc)[WIDTH / 2]) {
    int add = 0, previous = -1;
    for (int k_block = 0; k_block < k_blocks; ++k_block) {
        barrier_wait(s.full + 8 * s.ring.slot, s.ring.phase);
        const uint32_t uses = warp_uniform(load_word(s.slot_uses + 4 * s.ring.slot));
        __syncwarp();  // all lanes have read it before one lane releases the slot
        if (uses >> s.half & 1) {
            multiply<T, X, WEIGHTS, WIDTH>(acc, s.first + s.ring.slot * STAGE_BYTES, s.half, add);
            wgmma_wait<1>();  // the wgmma of the previous stage has finished reading it
            if (previous >= 0) s.release(previous);
            previous = s.ring.slot, add = 1;
        } else {
            // release the previous slot now, not after the next product: the producer may need it to load that
            // product's stage
            wgmma_wait<0>();
            if (previous >= 0) s.release(previous);
            previous = -1;
            s.release(s.ring.slot);
        }
        s.ring.advance(STAGES);
    }
    wgmma_wait<0>();
    fence_sums(acc);
    if (previous >= 0) s.release(previous);
    return add;
}

// Computes a work tile: all of its k-blocks, then stores Y; or a split-K part of them, then stores partial sums to its
// units.
template <typename T, typename X, Weights WEIGHTS, int WIDTH>
__device__ __forceinline__ void compute(const Problem& problem, Stages& s, Quarters& quarters, const WorkTile& tile, int rank,
                                        float (&sums)[MOST_COLUMNS / 2], const uint32_t (&stored_bias)[2], int first_output, int unit) {
    auto& acc = reinterpret_cast<float(&)[WIDTH / 2]>(sums);
    const int column = first_column(problem, tile, rank), groups = groups_of(problem, tile, column);
    if (unit < 0) load_first_residuals(problem, quarters, column, groups, first_output);
    const int add = add_up<T, X, WEIGHTS, WIDTH>(s, tile.k_blocks, acc);
    if (unit >= 0) return leave_sums<WIDTH>(problem.sums, unit + rank * (WIDTH / GROUP), groups, acc, add);
    const float bias[2] = {bias_of(problem.epilogue, stored_bias[0]), bias_of(problem.epilogue, stored_bias[1])};
    store<T, WIDTH>(problem, quarters, acc, bias, column, groups, first_output, add);
}

template <typename T, typename X, Weights WEIGHTS>
__device__ __forceinline__ void consume(const Problem& problem, int rank, uint32_t stages, uint32_t full, uint32_t empty,
                                        uint32_t slot_uses, uint32_t landed) {
    Stages s{stages, full, empty, slot_uses, warp_uniform(threadIdx.x / 128), problem.cluster};
    Quarters quarters{stages + STAGES * STAGE_BYTES + s.half * QUARTER_BUFFERS * QUARTER_BYTES,
                      landed + s.half * QUARTER_BUFFERS * 8, 1 + s.half, threadIdx.x % 128 == 0};
    // what a tile needs is loaded while earlier tiles are computed
    int4 ahead[2];
    ahead[0] = ahead[1] = load_early(problem.first_work + cluster_index(problem));
    const int4* next = problem.work + __ldg(problem.work_begin + cluster_index(problem));
    const int4* const end = problem.work + __ldg(problem.work_begin + cluster_index(problem) + 1);
    const int own_output = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;  // this thread's first output within its half
    float acc[MOST_COLUMNS / 2];
    if (next + 1 < end) ahead[1] = load_early(next + 1);
    int next_output = load_early(problem.outputs + 2 * ahead[0].x + s.half);
    const int* next_unit = problem.units == nullptr ? nullptr : problem.units + (next - problem.work);
    for (; next < end; ++next) {
        const WorkTile tile(ahead[0]);
        const int first_output = static_cast<int>(warp_uniform(next_output)), unit = next_unit == nullptr ? -1 : __ldg(next_unit++);
        ahead[0] = ahead[1];
        next_output = load_early(problem.outputs + 2 * ahead[0].x + s.half);
        if (next + 2 < end) ahead[1] = load_early(next + 2);
        uint32_t bias[2];
#pragma unroll
        for (int p = 0; p < 2; ++p)
            bias[p] = load_bias(problem.epilogue, first_output < 0 ? -1 : first_output + own_output + p * 8);
        switch (tile.width) {
            case 256: compute<T, X, WEIGHTS, 256>(problem, s, quarters, tile, rank, acc, bias, first_output, unit); break;
            case 192: compute<T, X, WEIGHTS, 192>(problem, s, quarters, tile, rank, acc, bias, first_output, unit); break;
            case 128: compute<T, X, WEIGHTS, 128>(problem, s, quarters, tile, rank, acc, bias, first_output, unit); break;
            default: compute<T, X, WEIGHTS, 64>(problem, s, quarters, tile, rank, acc, bias, first_output, unit); break;
        }
    }
    if (quarters.leads) wait_for_reads_of_stores<0>();  // the end of the grid completes the remaining stores
    __syncwarp();
}

}  // namespace
