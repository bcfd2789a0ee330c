// Split-K partial sums that several CTAs left in global memory. The kernel that follows adds them in a fixed order.
#pragma once

#include <cstdint>

namespace {

constexpr int PIECES_AT_ONCE = 8;  // partial sums whose loads are in flight together

// Loads 16 bytes that another kernel wrote, or returns zeros. `volatile` keeps the load in place, so that several are
// in flight.
__device__ __forceinline__ float4 load_sums(const float* address, bool exists) {
    float4 v;
    asm volatile(
        "{\n.reg .pred exists;\n"
        "setp.ne.s32 exists, %5, 0;\n"
        "mov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\nmov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
        "@exists ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "l"(address), "r"(static_cast<int>(exists)));
    return v;
}

// Adds up four neighboring sums over `pieces` partial tiles, in order. from, step: address of the first partial sum,
// and distance to the next in floats. meanwhile(): runs once, while the first loads are in flight.
template <typename Meanwhile>
__device__ __forceinline__ float4 add_pieces(const float* from, int pieces, int64_t step, const Meanwhile& meanwhile) {
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int done = 0; done < pieces; done += PIECES_AT_ONCE, from += PIECES_AT_ONCE * step) {
        float4 found[PIECES_AT_ONCE];
#pragma unroll
        for (int i = 0; i < PIECES_AT_ONCE; ++i) found[i] = load_sums(from + i * step, done + i < pieces);
        if (done == 0) meanwhile();
#pragma unroll
        for (const float4& v : found) sums.x += v.x, sums.y += v.y, sums.z += v.z, sums.w += v.w;
    }
    return sums;
}

}  // namespace
