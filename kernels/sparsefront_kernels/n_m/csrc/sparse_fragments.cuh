// 1 or 2 of every 4 inputs as left operands of sparse products (mma.sp.m16n8k32), and their products with rows of X in shared memory.
//
// A sparse left operand holds two of every four neighbouring k, and a word of metadata says which. 2:4 lies in memory as these
// operands do, so that a lane does nothing but load them. 1:4 takes a mask for each two weights; see OfFour<1>.
#pragma once

#include "../../cuda/thread_per_output_operands.cuh"
#include "../../cuda/tensor_copy.cuh"

namespace mma {

constexpr int PADDING = 16;  // bytes between rows of X, so that eight rows are in different banks

// SELECTOR: the lanes of each four whose words of metadata count, 0: the first two, 1: the others. A word has the indices of 16 k, of row
// lane / 4 in its lower half and of row lane / 4 + 8 in the upper one, four bits for every four k.
template <typename T, int SELECTOR>
__device__ __forceinline__ void multiply_add_sparse(float* sums, const uint32_t (&left)[4], const uint32_t (&right)[4], uint32_t metadata) {
    if constexpr (__is_same(T, __half)) {
        asm volatile(
            "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, "
            "{%0,%1,%2,%3}, %12, %13;"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "r"(right[2]), "r"(right[3]), "r"(metadata),
              "n"(SELECTOR));
    } else {
        asm volatile(
            "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, "
            "{%0,%1,%2,%3}, %12, %13;"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "r"(right[2]), "r"(right[3]), "r"(metadata),
              "n"(SELECTOR));
    }
}

// A chunk of a lane: 32 kept weights, as [k-block][half of 16 outputs][the four words of a left operand], and two words of indices.
struct SparseChunk {
    static constexpr int VALUES = 1024, INDICES = 64;  // of all lanes: numbers; words

    uint32_t left[2][2][4], indices[2];

    // From a slot in shared memory: values as [k-block][half][lane][16 bytes], then words as [lane][2].
    __device__ __forceinline__ void read(const uint8_t* slot, int lane) {
#pragma unroll
        for (int at = 0; at < 4; ++at)
            *reinterpret_cast<uint4*>(left[at / 2][at % 2]) = *reinterpret_cast<const uint4*>(slot + (at * thread_per_output::LANES + lane) * 16);
        *reinterpret_cast<uint2*>(indices) = *reinterpret_cast<const uint2*>(slot + VALUES * 2 + lane * 8);
    }
};

// How a weight of a pattern is multiplied; this is what both kinds of `OfFour` have in common. A chunk is of 32 outputs, two halves of 16.
// Sums of a lane: [half][eight rows of X][4].
struct OfFourSums {
    using Chunk = SparseChunk;
    static constexpr bool IN_SLOTS = false;  // rows of X lie as in memory

    template <int ROWS>
    static __device__ __forceinline__ int row(int i, int lane) {
        return i / 4 % (ROWS / 8) * 8 + lane % 4 * 2 + i % 2;
    }
    template <int ROWS>
    static __device__ __forceinline__ int output(int i, int lane) {
        return i / 4 / (ROWS / 8) * 16 + i % 4 / 2 * 8 + lane / 4;
    }
    template <typename T, int ROWS>
    static __device__ __forceinline__ void multiply_both(float (&sums)[ROWS], int block, const uint32_t (&upper)[4], const uint32_t (&lower)[4],
                                                         const uint32_t (&right)[4], uint32_t metadata) {
        multiply_add_sparse<T, 0>(sums + block * 4, upper, right, metadata);
        multiply_add_sparse<T, 1>(sums + (ROWS / 8 + block) * 4, lower, right, metadata);
    }
};

template <int KEPT>
struct OfFour;

// Chunks of 64 inputs, as they are: two products.
template <>
struct OfFour<2> : OfFourSums {
    static constexpr int INPUTS = 64;

    // x: in shared memory, the chunk's first input of the first row.
    template <typename T, int ROWS>
    static __device__ __forceinline__ void multiply(float (&sums)[ROWS], const SparseChunk& chunk, const uint8_t* x, int pitch, int lane) {
        const uint32_t own = shared_address(x) + lane % 8 * pitch + lane / 8 * 16;
#pragma unroll
        for (int k_block = 0; k_block < 2; ++k_block) {
#pragma unroll
            for (int block = 0; block < ROWS / 8; ++block) {
                const uint4 right = load_blocks(own + block * 8 * pitch + k_block * 64);
                multiply_both<T, ROWS>(sums, block, chunk.left[k_block][0], chunk.left[k_block][1], {right.x, right.y, right.z, right.w},
                                       chunk.indices[k_block]);
            }
        }
    }
};

// Chunks of 128 inputs: two k-blocks of 64 with two products each. The four k of a sparse group are two neighbouring inputs of a group of
// four, a, and two of another one, b: the first two of both in one product, the last two in the other one. So a word with the weights of
// a and b holds what is kept of either product once the other's is masked out, and both products have the same metadata.
template <>
struct OfFour<1> : OfFourSums {
    static constexpr int INPUTS = 128;
    static constexpr uint32_t OF_SECOND_PAIR = 0x88888888;  // indices are p and 2 + p, where p is 0 or 1

    // Ones where a weight of word `at` (0 … 15) is among the first two of its four inputs: a bit of the bits says so.
    static __device__ __forceinline__ uint32_t among_first(uint32_t bits, int at) {
        uint32_t mask;  // each byte is the sign of another one
        if (at % 2 == 0) asm("prmt.b32 %0, %1, %1, 0x9988;" : "=r"(mask) : "r"(bits << at / 2));
        else asm("prmt.b32 %0, %1, %1, 0xBBAA;" : "=r"(mask) : "r"(bits << at / 2));
        return mask;
    }

    template <typename T, int ROWS>
    static __device__ __forceinline__ void multiply(float (&sums)[ROWS], const SparseChunk& chunk, const uint8_t* x, int pitch, int lane) {
        const uint8_t* own = x + lane / 4 * pitch + lane % 4 * 32;  // 16 inputs of a row
#pragma unroll
        for (int k_block = 0; k_block < 2; ++k_block) {
            const uint32_t metadata = (chunk.indices[0] >> k_block & 0x55555555) | OF_SECOND_PAIR;
            uint32_t first[2][4], last[2][4];
#pragma unroll
            for (int at = 0; at < 8; ++at) {
                const uint32_t both = chunk.left[k_block][at / 4][at % 4], mask = among_first(chunk.indices[1], k_block * 8 + at);
                first[at / 4][at % 4] = both & mask;
                last[at / 4][at % 4] = both & ~mask;
            }
#pragma unroll
            for (int block = 0; block < ROWS / 8; ++block) {
                const uint4 low = *reinterpret_cast<const uint4*>(own + block * 8 * pitch + k_block * 128);
                const uint4 high = *reinterpret_cast<const uint4*>(own + block * 8 * pitch + k_block * 128 + 16);
                multiply_both<T, ROWS>(sums, block, first[0], first[1], {low.x, low.z, high.x, high.z}, metadata);
                multiply_both<T, ROWS>(sums, block, last[0], last[1], {low.y, low.w, high.y, high.w}, metadata);
            }
        }
    }
};

}  // namespace mma
