// n of every 4 inputs as dense left operands of mma.m16n8k16, and their products with rows of X in shared memory.
//
// Which input stands at which k of a product is free, as long as both operands agree: lane 4r + q holds, of output r (and r + 8),
// the four k that are one group, so that it puts the group's weights into their places by itself.
#pragma once

#include "../../cuda/lane_chunk.cuh"

namespace mma {

constexpr int GROUP = 4, K_BLOCK = 64, WINDOWS = 4;  // of a lane in 64 inputs
constexpr int PADDING = 16;                          // bytes between rows of X, so that eight lanes read all banks

// 0 where the shift is 32 or more, or negative.
__device__ __forceinline__ uint32_t shifted(uint32_t v, uint32_t by) {
    uint32_t result;
    asm("shl.b32 %0, %1, %2;" : "=r"(result) : "r"(v), "r"(by));
    return result;
}

// A group of four: `low` holds its first two inputs.
struct Group {
    uint32_t low = 0, high = 0;

    // Value j of a chunk, at its place.
    template <typename T>
    __device__ __forceinline__ void add(const lanes::Chunk<T, 2, 1>& chunk, int j) {
        const uint32_t word = chunk.values[j / 2], value = j % 2 == 0 ? word & 0xFFFF : word >> 16;
        const uint32_t by = chunk.template place<4>(j);  // 16 bits for each input
        low |= shifted(value, by);
        high |= shifted(value, by - 32);
    }
};

template <typename T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const Group& upper, const Group& lower, uint32_t x_low, uint32_t x_high) {
    if constexpr (__is_same(T, __half)) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(upper.low), "r"(lower.low), "r"(upper.high), "r"(lower.high), "r"(x_low), "r"(x_high));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(upper.low), "r"(lower.low), "r"(upper.high), "r"(lower.high), "r"(x_low), "r"(x_high));
    }
}

// A chunk of 32 outputs: two halves of 16, and 64 inputs of each where two are kept of four, 128 where one is.
// x: of the chunk's first input and the lane's first row and inputs.
template <typename T, int KEPT, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply(float (&sums)[2][COLUMN_BLOCKS][4], const lanes::Chunk<T, 2, 1>& chunk, const uint8_t* x, int pitch) {
#pragma unroll
    for (int k_block = 0; k_block < 2 / KEPT; ++k_block) {
#pragma unroll
        for (int pair = 0; pair < WINDOWS / 2; ++pair) {
            Group upper[2][2], lower[2][2];  // [half][of the pair of windows]
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int window = 0; window < 2; ++window) {
#pragma unroll
                    for (int i = 0; i < KEPT; ++i) {
                        const int j = half * 16 + k_block * 8 * KEPT + (2 * pair + window) * 2 * KEPT + i;
                        upper[half][window].add(chunk, j);
                        lower[half][window].add(chunk, j + KEPT);
                    }
                }
            }
#pragma unroll
            for (int block = 0; block < COLUMN_BLOCKS; ++block) {
                const uint4 inputs = *reinterpret_cast<const uint4*>(x + block * 8 * pitch + k_block * K_BLOCK * 2 + pair * 16);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    multiply_add<T>(sums[half][block], upper[half][0], lower[half][0], inputs.x, inputs.y);
                    multiply_add<T>(sums[half][block], upper[half][1], lower[half][1], inputs.z, inputs.w);
                }
            }
        }
    }
}

}  // namespace mma
