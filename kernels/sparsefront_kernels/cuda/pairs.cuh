// Two 16-bit numbers (half or bfloat16) packed in a 32-bit word.
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
