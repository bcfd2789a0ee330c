// Warpgroup products of e4m3 numbers: operands in shared memory with contiguous k, sums in registers.
#pragma once

#include "../../cuda/wgmma.cuh"

#define WITHOUT_PARENTHESES(...) __VA_ARGS__
#define WGMMA_E4M3(COLUMNS, NAMES, OUTS, LEFT, RIGHT, ADD)                                                              \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k32.f32.e4m3.e4m3 {" NAMES "}, %" #LEFT ", %" #RIGHT     \
                 ", add, 1, 1;\n}\n"                                                                                    \
                 : WITHOUT_PARENTHESES OUTS                                                                             \
                 : "l"(left), "l"(right), "n"(ADD_TO))

// d[64, COLUMNS] (+)= left[64, 32] · right[COLUMNS, 32]ᵀ.
template <int COLUMNS, int ADD_TO>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[COLUMNS / 2], uint64_t left, uint64_t right) {
    if constexpr (COLUMNS == 64) {
        WGMMA_E4M3(64, NAMES_32, (OUT_32(0)), 32, 33, 34);
    } else {
        static_assert(COLUMNS == 128);
        WGMMA_E4M3(128, NAMES_64, (OUT_64(0)), 64, 65, 66);
    }
}

#undef WGMMA_E4M3
#undef WITHOUT_PARENTHESES

// d[64, COLUMNS] (+)= left[64, 128] · right[COLUMNS, 128]ᵀ, both swizzled rows of 128 bytes; begins, does not wait. FIRST: d is set.
template <int COLUMNS, bool FIRST>
__device__ __forceinline__ void multiply_k_block(float (&d)[COLUMNS / 2], uint32_t left, uint32_t right) {
    const uint64_t l = k_major_descriptor<128>(left), r = k_major_descriptor<128>(right);
    wgmma_fence();
    wgmma_e4m3<COLUMNS, !FIRST>(d, l, r);
#pragma unroll
    for (int part = 1; part < 4; ++part) wgmma_e4m3<COLUMNS, 1>(d, l + part * (32 >> 4), r + part * (32 >> 4));
    wgmma_commit();
}
