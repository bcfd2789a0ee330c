// Y of a work tile, from the sums that the tensor cores leave in registers: Y = activation(rounded sums + bias) + residual,
// feature-major or row-major, a quarter of the tile's columns at a time.
#pragma once

#include "../../cuda/rounded_epilogue.cuh"
#include "persistent_work.cuh"

namespace {

// Feature-major: a lane stores eight columns of an output after an exchange within its quad.
template <typename T>
struct FeatureMajor {
    template <int WIDTH>
    __device__ __forceinline__ static void store(const Epilogue& epilogue, const WorkTile& tile, const float (&acc)[WIDTH / 2],
                                                 const float (&bias)[2], const int (&outputs)[2], bool any) {
        uint4 residual[2][4];  // of a quarter and of the next, whose loads are under way
        load_residual<0>(epilogue, tile, outputs, residual[0]);
        store_quarter<0, WIDTH>(epilogue, tile, acc, bias, outputs, any, residual);
    }

    template <int Q>
    __device__ __forceinline__ static void load_residual(const Epilogue& epilogue, const WorkTile& tile, const int (&outputs)[2],
                                                         uint4 (&residual)[4]) {
        if (epilogue.residual == nullptr) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = tile.column + Q * QUARTER + i / 2 * 32 + threadIdx.x % 4 * 8, output = outputs[i % 2];
            residual[i] = make_uint4(0, 0, 0, 0);
            if (output >= 0 && at < epilogue.m)
                residual[i] = *reinterpret_cast<const uint4*>(static_cast<const T*>(epilogue.residual) +
                                                              output * epilogue.residual_stride + at);
        }
    }

    template <int Q, int WIDTH>
    __device__ __forceinline__ static void store_quarter(const Epilogue& epilogue, const WorkTile& tile,
                                                         const float (&acc)[WIDTH / 2], const float (&bias)[2],
                                                         const int (&outputs)[2], bool any, uint4 (&residual)[2][4]) {
        if constexpr ((Q + 1) * QUARTER < WIDTH) load_residual<Q + 1>(epilogue, tile, outputs, residual[(Q + 1) % 2]);
        const Quarter<T> quarter(acc + Q * 32, bias, any, epilogue);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = tile.column + Q * QUARTER + i / 2 * 32 + threadIdx.x % 4 * 8, output = outputs[i % 2];
            uint32_t v[4] = {quarter.v[i * 4], quarter.v[i * 4 + 1], quarter.v[i * 4 + 2], quarter.v[i * 4 + 3]};
            transpose_in_quad(v, threadIdx.x % 32);
            if (epilogue.residual != nullptr) {
                const uint4& more = residual[Q % 2][i];
                v[0] = sum_of_two<T>(v[0], more.x), v[1] = sum_of_two<T>(v[1], more.y);
                v[2] = sum_of_two<T>(v[2], more.z), v[3] = sum_of_two<T>(v[3], more.w);
            }
            uint4* y = reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + output * epilogue.y_stride + at);
            if (output >= 0 && at < epilogue.m) __stcs(y, make_uint4(v[0], v[1], v[2], v[3]));
        }
        if constexpr ((Q + 1) * QUARTER < WIDTH)
            store_quarter<Q + 1, WIDTH>(epilogue, tile, acc, bias, outputs, any, residual);
    }
};

// Row-major, where a tile's outputs lie in runs of eight neighbours: blocks of 8 x 8 are transposed in registers.
template <typename T>
struct RowMajor {
    template <int WIDTH>
    __device__ __forceinline__ static void store(const Epilogue& epilogue, const WorkTile& tile, const float (&acc)[WIDTH / 2],
                                                 const float (&bias)[2], const int (&outputs)[2], bool any) {
#pragma unroll
        for (int q = 0; q < WIDTH / QUARTER; ++q)
            store_transposed(epilogue, Quarter<T>(acc + q * 32, bias, any, epilogue), outputs,
                             tile.column + q * QUARTER);
    }

    // A lane stores eight neighbouring outputs of one row of Y, two lanes a sector of memory.
    __device__ __forceinline__ static void store_transposed(const Epilogue& epilogue, const Quarter<T>& quarter,
                                                            const int (&outputs)[2], int column) {
        const int lane = threadIdx.x % 32;
        const int runs[2] = {__shfl_sync(~0u, outputs[0], 0), __shfl_sync(~0u, outputs[1], 0)};
        const int first = lane % 2 ? runs[1] : runs[0];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 16 columns
            const uint32_t* of_columns = quarter.v + i / 2 * 8 + i % 2 * 2;
            uint32_t v[4] = {transposed_block(of_columns[0]), transposed_block(of_columns[4]), transposed_block(of_columns[1]),
                             transposed_block(of_columns[5])};
            transpose_in_quad(v, lane);
            const long long row = column + (2 * i + lane % 4 / 2) * 8 + lane / 4;
            if (first < 0 || row >= epilogue.m) continue;
            add_residual_run(v, epilogue, row, first);
            __stcs(reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + row * epilogue.y_stride + first),
                   make_uint4(v[0], v[1], v[2], v[3]));
        }
    }

    __device__ __forceinline__ static void add_residual_run(uint32_t (&v)[4], const Epilogue& epilogue, long long row, int first) {
        if (epilogue.residual == nullptr) return;
        const uint4 more = *reinterpret_cast<const uint4*>(static_cast<const T*>(epilogue.residual) +
                                                           row * epilogue.residual_stride + first);
        v[0] = sum_of_two<T>(v[0], more.x), v[1] = sum_of_two<T>(v[1], more.y);
        v[2] = sum_of_two<T>(v[2], more.z), v[3] = sum_of_two<T>(v[3], more.w);
    }
};

}  // namespace
