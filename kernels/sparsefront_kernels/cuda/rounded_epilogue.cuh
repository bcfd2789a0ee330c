// Epilogue on rounded sums: sum + bias is rounded to T first; the activation and the residual then work on packed
// pairs.
#pragma once

#include <type_traits>

#include "epilogue.cuh"
#include "work_tile.cuh"

namespace {

// Raw bits of an output's bias in its stored type; 0 if there is none.
__device__ __forceinline__ uint32_t load_bias(const Epilogue& epilogue, int output) {
    if (epilogue.bias_type == 0 || output < 0) return 0;
    return epilogue.bias_type == 1 ? load_early(static_cast<const int*>(epilogue.bias) + output)
                                   : load_early(static_cast<const uint16_t*>(epilogue.bias) + output);
}

__device__ __forceinline__ float bias_of(const Epilogue& epilogue, uint32_t stored) { return bias_at(&stored, epilogue.bias_type, 0); }

template <typename T>
using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <typename T>
__device__ __forceinline__ uint32_t relu_of_two(uint32_t both) {
    const Two<T> v = __hmax2_nan(reinterpret_cast<const Two<T>&>(both), Two<T>{});  // NaN stays NaN, as in torch.relu
    return reinterpret_cast<const uint32_t&>(v);
}

// Packed form of gelu_for_16_bits. The argument is computed in half: it need not be more precise than tanh.approx.
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

// Applies the activation to rounded sums, two at a time.
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

// Rounded sums of 64 columns of a thread's two outputs. v[c * 8 + p * 4 + b] holds two neighboring columns of
// output p, in 8-column block b of the group c of 32 columns.
template <typename T>
struct Quarter {
    uint32_t v[16];

    // If there were no products (`any` is false), the accumulators are uninitialized and not read.
    __device__ __forceinline__ Quarter(const float* acc, const float (&bias)[2], bool any, const Epilogue& epilogue) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int c = i / 8, p = i / 4 % 2, b = i % 4, d = c * 16 + b * 4 + p * 2;
            v[i] = any ? packed<T>(acc[d] + bias[p], acc[d + 1] + bias[p]) : packed<T>(bias[p], bias[p]);
        }
        activate<T>(v, epilogue);
    }
};

}  // namespace
