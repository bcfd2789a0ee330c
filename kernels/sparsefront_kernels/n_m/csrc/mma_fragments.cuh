// n of every 4 inputs, or 3 of every 32, as dense left operands of mma.m16n8k16, and their products with rows of X in shared memory.
//
// Which input stands at which k of a product is free, as long as both operands agree: lane 4r + q holds, of output r (and r + 8),
// four k of a product, which all are of one group, so that it puts the group's weights into their places by itself. A group of 32 has
// eight products.
#pragma once

#include "../../cuda/lane_chunk.cuh"

namespace mma {

constexpr int K_BLOCK = 64, WINDOWS = 4;  // of a lane in 64 inputs
constexpr int PADDING = 16;                          // bytes between rows of X, so that eight lanes read all banks

// 0 where the shift is 32 or more, or negative.
__device__ __forceinline__ uint32_t shifted(uint32_t v, uint32_t by) {
    uint32_t result;
    asm("shl.b32 %0, %1, %2;" : "=r"(result) : "r"(v), "r"(by));
    return result;
}

// Which the compiler does not know: all rows of X are multiplied at once.
__device__ __forceinline__ uint32_t the_number_one() { return gridDim.y; }

// a - b on the units of multiplications: shifts and ands already fill those of additions.
__device__ __forceinline__ uint32_t less(uint32_t a, uint32_t b, uint32_t one) {
    uint32_t result;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(one), "r"(-b));
    return result;
}

// A group of four: `low` holds its first two inputs.
struct Group {
    uint32_t low = 0, high = 0;

    // Value j of a chunk, at its place.
    template <typename T>
    __device__ __forceinline__ void add(const lanes::Chunk<T, 2, 1>& chunk, int j, uint32_t one) {
        const uint32_t word = chunk.values[j / 2], value = j % 2 == 0 ? word & 0xFFFF : word >> 16;
        const uint32_t by = chunk.template place<4>(j);  // 16 bits for each input
        low |= shifted(value, by);
        high |= shifted(value, less(by, 32, one));
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

// How a weight of a pattern is multiplied: a chunk of 32 outputs, which are two halves of 16.
// x: of the chunk's first input and the lane's first row and inputs.

// 64 inputs of each output where two are kept of four, 128 where one is.
template <int KEPT>
struct OfFour {
    static constexpr int BITS = 2, INPUTS = lanes::CHUNK / KEPT * 4, LANE_BYTES = 32;  // of a place; of a chunk; of a row, to the next lane

    template <typename T, int COLUMN_BLOCKS>
    static __device__ __forceinline__ void multiply(float (&sums)[2][COLUMN_BLOCKS][4], const lanes::Chunk<T, BITS, 1>& chunk, const uint8_t* x,
                                                    int pitch) {
        const uint32_t one = the_number_one();
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
                            upper[half][window].add(chunk, j, one);
                            lower[half][window].add(chunk, j + KEPT, one);
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
};

// 256 inputs of each output, of which a lane has two groups of 32, with four slots to a group, the last one empty. Lanes q = 2, 3 read
// the halves of their groups the other way round, so that eight lanes read all banks; their places are packed as such.
struct ThreeOf32 {
    static constexpr int BITS = 5, INPUTS = 256, LANE_BYTES = 64;
    static constexpr int KEPT = 3, SLOTS = 4, GROUPS = 2, UNITS = 4;  // units of eight inputs, two products

    // Inputs 2 * word and 2 * word + 1 of a group, whose slots begin at value j.
    template <typename T>
    static __device__ __forceinline__ uint32_t dense(const lanes::Chunk<T, BITS, 1>& chunk, int j, uint32_t word, uint32_t one) {
        uint32_t both = 0;
#pragma unroll
        for (int i = j; i < j + KEPT; ++i) {
            const uint32_t pair = chunk.values[i / 2], value = i % 2 == 0 ? pair & 0xFFFF : pair >> 16;
            both |= shifted(value, less(chunk.template place<4>(i), 32 * word, one));
        }
        return both;
    }

    template <typename T, int COLUMN_BLOCKS>
    static __device__ __forceinline__ void multiply(float (&sums)[2][COLUMN_BLOCKS][4], const lanes::Chunk<T, BITS, 1>& chunk, const uint8_t* x,
                                                    int pitch) {
        const int turned = threadIdx.x % 4 / 2 * 32;
        const uint32_t one = the_number_one();
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
#pragma unroll
            for (int unit = 0; unit < UNITS; ++unit) {
                uint4 inputs[COLUMN_BLOCKS];
#pragma unroll
                for (int block = 0; block < COLUMN_BLOCKS; ++block)
                    inputs[block] = *reinterpret_cast<const uint4*>(x + block * 8 * pitch + group * 4 * LANE_BYTES + (unit * 16 ^ turned));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int upper = (group * 2 + half) * 2 * SLOTS, lower = upper + SLOTS;
#pragma unroll
                    for (int product = 0; product < 2; ++product) {
                        const uint32_t word = unit * 4 + product * 2;
                        const Group above{dense(chunk, upper, word, one), dense(chunk, upper, word + 1, one)};
                        const Group below{dense(chunk, lower, word, one), dense(chunk, lower, word + 1, one)};
#pragma unroll
                        for (int block = 0; block < COLUMN_BLOCKS; ++block) {
                            const uint4& v = inputs[block];
                            multiply_add<T>(sums[half][block], above, below, product == 0 ? v.x : v.z, product == 0 ? v.y : v.w);
                        }
                    }
                }
            }
        }
    }
};

}  // namespace mma
