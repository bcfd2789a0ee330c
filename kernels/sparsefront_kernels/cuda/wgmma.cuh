// Dense wgmma (sm_90a): operands in shared memory, float32 accumulators in registers. Names and semantics: PTX ISA,
// section "wgmma.mma_async".
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps this thread's accesses to the accumulators on their side of a wgmma wait, or of the fence before the first
// wgmma. To the compiler, neither involves these registers, and a wgmma in flight has already completed.
template <int COUNT>
__device__ __forceinline__ void fence_sums(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Lower half of the descriptor of an MN-major operand of 16 k: rows of 128 bytes (64 elements along M or N), 8 k per
// atom of 1024 bytes, 128-byte swizzle. Neighboring blocks of 64 elements lie `block_stride` bytes apart. To advance by
// some bytes, add bytes / 16.
__device__ __forceinline__ uint32_t operand_place(uint32_t address, uint32_t block_stride) {
    return (block_stride >> 4) << 16 | (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ uint64_t operand_descriptor(uint32_t place) {
    constexpr uint64_t swizzle_128 = 1ull << 62, atom_stride = 1024 >> 4;
    return swizzle_128 | atom_stride << 32 | place;
}

// Descriptor of a K-major operand of 16 k: contiguous rows of ROW_BYTES (128, 64 or 32) with a swizzle of the same
// width. To advance within a row, add bytes to the address.
template <int ROW_BYTES>
__device__ __forceinline__ uint64_t k_major_descriptor(uint32_t address) {
    constexpr uint64_t swizzle = static_cast<uint64_t>(ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3) << 62;
    constexpr uint64_t eight_rows = 8 * ROW_BYTES >> 4;
    return swizzle | eight_rows << 32 | 1 << 16 | (address & 0x3FFFF) >> 4;
}

#define OUT_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT_16(i) OUT_4(i), OUT_4(i + 4), OUT_4(i + 8), OUT_4(i + 12)
#define OUT_32(i) OUT_16(i), OUT_16(i + 16)
#define OUT_64(i) OUT_32(i), OUT_32(i + 32)
#define NAMES_32                                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                           \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                                       \
    NAMES_32                                                                                                           \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                                \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_96                                                                                                       \
    NAMES_64                                                                                                           \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"                                                \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_128                                                                                                      \
    NAMES_96                                                                                                           \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"                                     \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define WITHOUT_PARENTHESES(...) __VA_ARGS__
#define WGMMA_IN_ORDER(COLUMNS, TYPE, NAMES, OUTS, LEFT, RIGHT, ADD, ORDERS)                                            \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES "}, %" #LEFT         \
                 ", %" #RIGHT ", add, 1, 1, " ORDERS ";\n}\n"                                                          \
                 : WITHOUT_PARENTHESES OUTS                                                                            \
                 : "l"(left), "l"(right), "r"(add))
#define WGMMA(COLUMNS, TYPE, NAMES, OUTS, LEFT, RIGHT, ADD)                                                            \
    if constexpr (LEFT_MAJOR == MN_MAJOR) {                                                                            \
        static_assert(RIGHT_MAJOR == MN_MAJOR);                                                                        \
        WGMMA_IN_ORDER(COLUMNS, TYPE, NAMES, OUTS, LEFT, RIGHT, ADD, "1, 1");                                          \
    } else if constexpr (RIGHT_MAJOR == MN_MAJOR) {                                                                    \
        WGMMA_IN_ORDER(COLUMNS, TYPE, NAMES, OUTS, LEFT, RIGHT, ADD, "0, 1");                                          \
    } else {                                                                                                           \
        WGMMA_IN_ORDER(COLUMNS, TYPE, NAMES, OUTS, LEFT, RIGHT, ADD, "0, 0");                                          \
    }

// Which dimension of an operand is contiguous: K, or M (or N).
constexpr int K_MAJOR = 0, MN_MAJOR = 1;

// d[64, COLUMNS] (+)= left · right, with left [64, 16] and right [16, COLUMNS] in shared memory, each K-major or
// MN-major.
template <typename T, int COLUMNS, int LEFT_MAJOR = MN_MAJOR, int RIGHT_MAJOR = MN_MAJOR>
__device__ __forceinline__ void wgmma(float (&d)[COLUMNS / 2], uint64_t left, uint64_t right, int add) {
    constexpr bool half = sizeof(T) == 2 && !__is_same(T, __nv_bfloat16);
    if constexpr (COLUMNS == 64 && half) {
        WGMMA(64, "f16", NAMES_32, (OUT_32(0)), 32, 33, 34);
    } else if constexpr (COLUMNS == 64) {
        WGMMA(64, "bf16", NAMES_32, (OUT_32(0)), 32, 33, 34);
    } else if constexpr (COLUMNS == 128 && half) {
        WGMMA(128, "f16", NAMES_64, (OUT_64(0)), 64, 65, 66);
    } else if constexpr (COLUMNS == 128) {
        WGMMA(128, "bf16", NAMES_64, (OUT_64(0)), 64, 65, 66);
    } else if constexpr (COLUMNS == 192 && half) {
        WGMMA(192, "f16", NAMES_96, (OUT_64(0), OUT_32(64)), 96, 97, 98);
    } else if constexpr (COLUMNS == 192) {
        WGMMA(192, "bf16", NAMES_96, (OUT_64(0), OUT_32(64)), 96, 97, 98);
    } else if constexpr (COLUMNS == 256 && half) {
        WGMMA(256, "f16", NAMES_128, (OUT_64(0), OUT_64(64)), 128, 129, 130);
    } else {
        static_assert(COLUMNS == 256);
        WGMMA(256, "bf16", NAMES_128, (OUT_64(0), OUT_64(64)), 128, 129, 130);
    }
}

#undef WGMMA
#undef WGMMA_IN_ORDER
#undef WITHOUT_PARENTHESES

// Sparse wgmma (sm_90a): the left operand stores two of every four neighboring inputs, plus metadata with their
// positions. Names and semantics: PTX ISA, section "wgmma.mma_async.sp".
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
