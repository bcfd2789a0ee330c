// Split-K: CTAs that share a work tile each store partial sums to global memory. A second kernel adds them in a fixed
// order and finishes Y, so equal operands give bit-identical results.
#pragma once

#include "../../cuda/shared_sums.cuh"
#include "blocked_store.cuh"

namespace {

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

}  // namespace
