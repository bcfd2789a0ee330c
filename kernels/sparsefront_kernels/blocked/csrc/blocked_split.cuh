// The warpgroups that multiply, where the blocks of a cluster share the k-blocks of one work tile of 64 columns: the sums of all are
// added up in shared memory, each block those of an equal part of the columns, in a fixed order.
#pragma once

#include "blocked_consumer.cuh"

namespace {

constexpr int EIGHTS = GROUP / 8;  // of columns: a thread has four sums of each
static_assert(EIGHTS * CONSUMERS * 16 == 2 * QUARTER_BUFFERS * QUARTER_BYTES);

// Where a half's part of Y is put together: by rows 128 bytes for each column, swizzled; by outputs 16 bytes for each eight columns.
struct Part {
    uint32_t buffer;
    int columns;  // of this block, a multiple of 16
    bool by_row;

    __device__ __forceinline__ uint32_t by_column(int column, int output_eight) const {
        return buffer + column * 128 + (output_eight ^ column % 8) * 16;
    }
    __device__ __forceinline__ uint32_t by_output(int output, int column_eight) const {
        return buffer + (output * (columns / 8) + column_eight) * 16;
    }
};

// Stores a half's part of Y from shared memory, 16 bytes a thread at a time.
template <typename T>
__device__ __forceinline__ void store_part(const Problem& problem, const Part& part, int column, int first_output) {
    const Epilogue& epilogue = problem.epilogue;
    const int chunks = part.columns * (HALF / 8), in_row = part.by_row ? HALF / 8 : part.columns / 8;
    for (int chunk = threadIdx.x % 128; chunk < chunks; chunk += 128) {
        const int outer = chunk / in_row, inner = chunk % in_row;
        const uint32_t from = part.by_row ? part.by_column(outer, inner) : part.by_output(outer, inner);
        const long long row = part.by_row ? column + outer : first_output + outer;
        const int at = (part.by_row ? first_output : column) + inner * 8;
        if (first_output < 0 || (part.by_row ? row : at) >= epilogue.m) continue;
        const float4 bits = load_16_bytes(from);
        uint4 v = reinterpret_cast<const uint4&>(bits);
        if (epilogue.residual != nullptr) {
            const uint4 more = *reinterpret_cast<const uint4*>(static_cast<const T*>(epilogue.residual) +
                                                               row * epilogue.residual_stride + at);
            v.x = with_residual<T>(v.x, more.x, problem.relu_last), v.y = with_residual<T>(v.y, more.y, problem.relu_last);
            v.z = with_residual<T>(v.z, more.z, problem.relu_last), v.w = with_residual<T>(v.w, more.w, problem.relu_last);
        }
        __stcs(reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + row * epilogue.y_stride + at), v);
    }
}

// Of four sums, two neighbouring columns of each of a thread's outputs, rounded and activated.
template <typename T>
__device__ __forceinline__ void finish(const float (&sums)[2][4], const float (&bias)[2], const Epilogue& epilogue, uint32_t (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = packed<T>(sums[i / 2][i % 2 * 2] + bias[i % 2], sums[i / 2][i % 2 * 2 + 1] + bias[i % 2]);
    activate<T>(v, epilogue);
}

template <typename T, typename X, Weights WEIGHTS>
__device__ __forceinline__ void consume_part(const Problem& problem, int rank, uint32_t stages, uint32_t full, uint32_t empty,
                                             uint32_t slot_uses) {
    Stages s{stages, full, empty, slot_uses, warp_uniform(threadIdx.x / 128), 1};
    const int4 place = load_early(problem.first_work + cluster_index(problem));
    const WorkTile tile = part_of(problem, place, rank);
    const int first_output = static_cast<int>(warp_uniform(load_early(problem.outputs + 2 * tile.cta_tile + s.half)));
    const int own_output = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    float bias[2];
#pragma unroll
    for (int p = 0; p < 2; ++p)
        bias[p] = bias_of(problem.epilogue, load_bias(problem.epilogue, first_output < 0 ? -1 : first_output + own_output + p * 8));
    float acc[GROUP / 2];
    if (!add_up<T, X, WEIGHTS, GROUP>(s, tile.k_blocks, acc)) {
#pragma unroll
        for (float& sum : acc) sum = 0.0f;
    }
    const uint32_t exchange = stages + STAGES * STAGE_BYTES + threadIdx.x * 16;
    const int eights = EIGHTS / problem.splits, first = rank * eights;
#pragma unroll
    for (int eight = 0; eight < EIGHTS; ++eight)
        store_16_bytes(exchange + eight * CONSUMERS * 16, acc + eight * 4);
    cluster_sync();  // with the warps that load: no stage is in use any more
    const Part part{stages + s.half * QUARTER_BYTES, eights * 8, problem.epilogue.y_row_major != 0};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane % 8, block = lane / 8;
    const int output_eight = 2 * warp + block % 2;
    for (int pair = 0; pair < eights / 2; ++pair) {
        float sums[2][4]{};
        for (int of = 0; of < problem.splits; ++of) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float4 v = load_from_cluster(exchange + (first + 2 * pair + i) * CONSUMERS * 16, of);
                sums[i][0] += v.x, sums[i][1] += v.y, sums[i][2] += v.z, sums[i][3] += v.w;
            }
        }
        uint32_t v[4];  // two eights of outputs of one eight of columns, then of the next
        finish<T>(sums, bias, problem.epilogue, v);
        const int column_eight = 2 * pair + block / 2;
        if (part.by_row) {
            store_transposed_blocks(part.by_column(column_eight * 8 + row, output_eight), v[0], v[1], v[2], v[3]);
        } else {
            store_blocks(part.by_output(output_eight * 8 + row, column_eight), v[0], v[1], v[2], v[3]);
        }
    }
    warpgroup_sync(1 + s.half);
    store_part<T>(problem, part, tile.column + rank * part.columns, first_output);
}

}  // namespace
