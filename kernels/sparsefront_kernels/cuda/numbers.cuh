// Number formats of the CUDA-core kernels. All accumulate in float32.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Two 16-bit numbers (half or bfloat16) packed in a 32-bit word.
template <typename T>
__device__ __forceinline__ uint32_t packed(float low, float high) {
    if constexpr (__is_same(T, __half)) {
        const __half2 both = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&both);
    } else {
        const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&both);
    }
}

template <typename T>
__device__ __forceinline__ float2 unpacked(uint32_t both) {
    if constexpr (__is_same(T, __half)) {
        return __half22float2(*reinterpret_cast<const __half2*>(&both));
    } else {
        return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&both));
    }
}

// Widens eight 16-bit numbers (16 bytes) to float.
template <typename T>
__device__ __forceinline__ void widen(float (&v)[8], const uint4& words) {
    const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
        const float2 two = unpacked<T>(pairs[pair]);
        v[2 * pair] = two.x, v[2 * pair + 1] = two.y;
    }
}

template <typename T>
__device__ __forceinline__ uint4 narrowed(const float (&v)[8]) {
    return make_uint4(packed<T>(v[0], v[1]), packed<T>(v[2], v[3]), packed<T>(v[4], v[5]), packed<T>(v[6], v[7]));
}

// Y = activation(sum + bias) + residual per element, in float32. The codes match epilogue.py.
enum Activation { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3 };

// type: 0 none, 1 float, 2 half, 3 bfloat16.
__device__ __forceinline__ float bias_at(const void* bias, int type, int output) {
    switch (type) {
        case 1: return static_cast<const float*>(bias)[output];
        case 2: return __half2float(static_cast<const __half*>(bias)[output]);
        case 3: return __bfloat162float(static_cast<const __nv_bfloat16*>(bias)[output]);
        default: return 0.0f;
    }
}

__device__ __forceinline__ float activated(float v, int activation) {
    switch (activation) {
        case RELU: return v > 0.0f || v != v ? v : 0.0f;  // NaN stays NaN, as in torch.relu
        case GELU: return 0.5f * v * (1.0f + erff(v * 0.70710678f));
        case GELU_TANH: return 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
        default: return v;
    }
}

namespace numbers {

__device__ __forceinline__ float widened(float v) { return v; }
__device__ __forceinline__ float widened(__half v) { return __half2float(v); }
__device__ __forceinline__ float widened(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T>
__device__ __forceinline__ T rounded(float v);
template <>
__device__ __forceinline__ float rounded<float>(float v) { return v; }
template <>
__device__ __forceinline__ __half rounded<__half>(float v) { return __float2half(v); }
template <>
__device__ __forceinline__ __nv_bfloat16 rounded<__nv_bfloat16>(float v) { return __float2bfloat16(v); }

// Element `at` of an array of T that is held as 32-bit words, widened to float. `at` must be a compile-time constant
// after unrolling.
template <typename T>
__device__ __forceinline__ float in_words(const uint32_t* words, int at) {
    if constexpr (sizeof(T) == 4) {
        return __uint_as_float(words[at]);
    } else if constexpr (__is_same(T, __nv_bfloat16)) {
        const uint32_t word = words[at / 2];
        return __uint_as_float(at % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    } else {
        const __half2 pair = *reinterpret_cast<const __half2*>(words + at / 2);
        return at % 2 == 0 ? __low2float(pair) : __high2float(pair);
    }
}

// type: 0 none, 1 float, 2 half, 3 bfloat16.
__device__ __forceinline__ float of_type(const void* numbers, int type, int at) {
    switch (type) {
        case 1: return static_cast<const float*>(numbers)[at];
        case 2: return widened(static_cast<const __half*>(numbers)[at]);
        case 3: return widened(static_cast<const __nv_bfloat16*>(numbers)[at]);
        default: return 0.0f;
    }
}

}  // namespace numbers
