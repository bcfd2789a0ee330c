// Epilogue of the blocked kernel: Y = activation(rounded(sums + bias)) + residual, a quarter (64 outputs x 64 columns)
// at a time, from registers through shared memory, then a TMA store.
#pragma once

#include "../../cuda/rounded_epilogue.cuh"
#include "blocked_work.cuh"

namespace {

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

}  // namespace
