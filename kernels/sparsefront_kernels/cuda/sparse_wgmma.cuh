// Sparse wgmma (sm_90a): the left operand stores two of every four neighboring inputs, plus metadata with their
// positions. Names and semantics: PTX ISA, section "wgmma.mma_async.sp".
#pragma once

#include "wgmma.cuh"

// What a weight panel stores: all weights, or two of every four neighboring inputs (2:4).
enum class Weights { ALL, HALVED };

// 2:4 left operand of 64 rows x 64 inputs: 32 values per row (64 bytes, 64-byte swizzle), then the metadata, one word
// per thread of the warpgroup. In lanes 4 q to 4 q + 3 of warp w, a word has the metadata of 16 inputs for rows 16 w +
// q (lower half) and 16 w + q + 8 (upper half): four bits per four inputs, two for each kept value. Lanes 0 and 1 of a
// quad hold the first 32 inputs, which one instruction consumes; lanes 2 and 3 hold the other 32.
constexpr int HALVED_VALUE_BYTES = 64 * 32 * 2, HALVED_PANEL_BYTES = HALVED_VALUE_BYTES + 128 * 4;

// All threads pass `places` (the metadata); the selector says which lanes' words the instruction reads.
#define SPARSE_WGMMA_OF(COLUMNS, TYPE, NAMES, OUTS, LEFT, RIGHT, PLACES, ADD, SELECTOR, ORDER)                          \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"                                                \
                 "wgmma.mma_async.sp.sync.aligned.m64n" #COLUMNS "k32.f32." TYPE "." TYPE " {" NAMES "}, %" #LEFT      \
                 ", %" #RIGHT ", %" #PLACES ", %" #SELECTOR ", add, 1, 1, 0, %" #ORDER ";\n}\n"                        \
                 : WITHOUT_PARENTHESES OUTS                                                                            \
                 : "l"(left), "l"(right), "r"(places), "r"(add), "n"(WHICH), "n"(RIGHT_MAJOR))
#define WITHOUT_PARENTHESES(...) __VA_ARGS__
#define SPARSE_WGMMA(COLUMNS, NAMES, OUTS, LEFT, RIGHT, PLACES, ADD, SELECTOR, ORDER)                                   \
    if constexpr (half) {                                                                                              \
        SPARSE_WGMMA_OF(COLUMNS, "f16", NAMES, OUTS, LEFT, RIGHT, PLACES, ADD, SELECTOR, ORDER);                       \
    } else {                                                                                                           \
        SPARSE_WGMMA_OF(COLUMNS, "bf16", NAMES, OUTS, LEFT, RIGHT, PLACES, ADD, SELECTOR, ORDER);                      \
    }

// d[64, COLUMNS] (+)= left[64, 32] · right[32, COLUMNS], both in shared memory; the left operand is K-major. WHICH: the
// metadata selector; 0 reads lanes 0 and 1 of each quad, 1 reads lanes 2 and 3.
template <typename T, int COLUMNS, int WHICH, int RIGHT_MAJOR>
__device__ __forceinline__ void sparse_wgmma(float (&d)[COLUMNS / 2], uint64_t left, uint64_t right, uint32_t places, int add) {
    constexpr bool half = sizeof(T) == 2 && !__is_same(T, __nv_bfloat16);
    if constexpr (COLUMNS == 64) {
        SPARSE_WGMMA(64, NAMES_32, (OUT_32(0)), 32, 33, 34, 35, 36, 37);
    } else if constexpr (COLUMNS == 128) {
        SPARSE_WGMMA(128, NAMES_64, (OUT_64(0)), 64, 65, 66, 67, 68, 69);
    } else if constexpr (COLUMNS == 192) {
        SPARSE_WGMMA(192, NAMES_96, (OUT_64(0), OUT_32(64)), 96, 97, 98, 99, 100, 101);
    } else {
        static_assert(COLUMNS == 256);
        SPARSE_WGMMA(256, NAMES_128, (OUT_64(0), OUT_64(64)), 128, 129, 130, 131, 132, 133);
    }
}

#undef SPARSE_WGMMA
#undef SPARSE_WGMMA_OF
#undef WITHOUT_PARENTHESES
