// Y of a work tile, from the sums that the tensor cores leave in registers: Y = activation(rounded sums + bias) + residual,
// feature-major or row-major, a quarter of the tile's columns at a time.
#pragma once

#include <type_traits>

#include "wide_work.cuh"

namespace {

template <typename T>
using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <typename T>
__device__ __forceinline__ uint32_t relu_of_two(uint32_t both) {
    const Two<T> v = __hmax2_nan(reinterpret_cast<const Two<T>&>(both), Two<T>{});  // NaN stays NaN, as in torch.relu
    return reinterpret_cast<const uint32_t&>(v);
}

// As gelu_for_16_bits; the argument of the tanh need not be more precise than the tanh.
template <typename T>
__device__ __forceinline__ uint32_t gelu_of_two(uint32_t both, const __half2 (&coefficients)[3]) {
    __half2 v;
    if constexpr (std::is_same_v<T, __half>) {
        v = reinterpret_cast<const __half2&>(both);
    } else {
        v = __float22half2_rn(unpacked<T>(both));
    }
    const __half2 square = __hmin2(__hmul2(v, v), __float2half2_rn(64.0f));
    const __half2 slope = __hfma2(__hfma2(coefficients[2], square, coefficients[1]), square, coefficients[0]);
    const __half2 argument = __hmul2(v, slope);
    uint32_t bits;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(bits) : "r"(reinterpret_cast<const uint32_t&>(argument)));
    const __half2 t = reinterpret_cast<const __half2&>(bits);
    if constexpr (std::is_same_v<T, __half>) {
        const __half2 half = __hmul2(v, __float2half2_rn(0.5f)), y = __hfma2(half, t, half);
        return reinterpret_cast<const uint32_t&>(y);
    } else {
        const float2 wide = unpacked<T>(both), of_v = __half22float2(t);
        return packed<T>(fmaf(0.5f * wide.x, of_v.x, 0.5f * wide.x), fmaf(0.5f * wide.y, of_v.y, 0.5f * wide.y));
    }
}

// Activation of rounded sums, two at a time.
template <typename T, int COUNT>
__device__ __forceinline__ void activate(uint32_t (&v)[COUNT], const Epilogue& epilogue) {
    if (epilogue.activation == NONE) return;
    if (epilogue.activation == RELU) {
#pragma unroll
        for (uint32_t& both : v) both = relu_of_two<T>(both);
        return;
    }
    const __half2 coefficients[3] = {__float2half2_rn(epilogue.gelu[0]), __float2half2_rn(epilogue.gelu[1]),
                                     __float2half2_rn(epilogue.gelu[2])};
#pragma unroll
    for (uint32_t& both : v) both = gelu_of_two<T>(both, coefficients);
}

template <typename T>
__device__ __forceinline__ uint32_t sum_of_two(uint32_t a, uint32_t b) {
    const Two<T> v = __hadd2(reinterpret_cast<const Two<T>&>(a), reinterpret_cast<const Two<T>&>(b));
    return reinterpret_cast<const uint32_t&>(v);
}

// A quarter of the columns of a thread, rounded: v[c * 8 + p * 4 + b]: two neighbouring columns of the eights b of the 32 columns
// c, of the thread's output p.
template <typename T>
struct Quarter {
    uint32_t v[16];

    // Where nothing was added up, the sums were never set.
    __device__ __forceinline__ Quarter(const float* acc, const float (&bias)[2], bool any, const Epilogue& epilogue) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int c = i / 8, p = i / 4 % 2, b = i % 4, d = c * 16 + b * 4 + p * 2;
            v[i] = any ? packed<T>(acc[d] + bias[p], acc[d + 1] + bias[p]) : packed<T>(bias[p], bias[p]);
        }
        activate<T>(v, epilogue);
    }
};

// Feature-major: a lane stores eight columns of an output after an exchange within its quad.
template <typename T>
struct FeatureMajor {
    template <int WIDTH>
    __device__ __forceinline__ static void store(const Problem& problem, const WorkTile& tile, const float (&acc)[WIDTH / 2],
                                                 const float (&bias)[2], const int (&outputs)[2], bool any) {
        uint4 residual[2][4];  // of a quarter and of the next, whose loads are under way
        load_residual<0>(problem.epilogue, tile, outputs, residual[0]);
        store_quarter<0, WIDTH>(problem.epilogue, tile, acc, bias, outputs, any, residual);
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
    __device__ __forceinline__ static void store(const Problem& problem, const WorkTile& tile, const float (&acc)[WIDTH / 2],
                                                 const float (&bias)[2], const int (&outputs)[2], bool any) {
#pragma unroll
        for (int q = 0; q < WIDTH / QUARTER; ++q)
            store_transposed(problem.epilogue, Quarter<T>(acc + q * 32, bias, any, problem.epilogue), outputs,
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
