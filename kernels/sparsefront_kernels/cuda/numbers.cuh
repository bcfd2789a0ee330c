// Number formats of the CUDA-core kernels. All accumulate in float32.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
