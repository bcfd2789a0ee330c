// Two numbers of 16 bits in a word, as half or bfloat16.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

