// 3 of every 32 inputs: no zero is multiplied, what the weights name of X is gathered as left operands of mma.m16n8k16.
//
// The 16 k of a product are a kept weight of each of eight groups, of two outputs: ldmatrix takes eight rows of X of each from where a lane
// says. Inputs of eight neighbouring groups lie in eight columns of banks, so that whatever they keep is read without a conflict.
// A right operand holds the weights of the two outputs in their columns, and zeros elsewhere.
#pragma once

#include "../../cuda/thread_per_output_kernel.cuh"
#include "../../cuda/tensor_copy.cuh"

namespace mma {

template <typename T>
__device__ __forceinline__ void multiply_add(float* sums, const uint4& left, uint32_t right_low, uint32_t right_high) {
    if constexpr (__is_same(T, __half)) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right_low), "r"(right_high));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right_low), "r"(right_high));
    }
}

// Chunks of 256 inputs, eight groups, of 32 outputs, four tiles of eight. Slots of X: [chunk][eight rows][index in a group][group][row].
struct ThreeOf32 {
    static constexpr int KEPT = 3, GROUP = 32, GROUPS = 8, TILES = 4, INPUTS = GROUP * GROUPS;
    static constexpr int INDEX_BITS = 5, OF_WORD = 6;                                    // indices of a word
    static constexpr int SLOT_BYTES = 16, INDEX_BYTES = GROUPS * SLOT_BYTES, OCTET_BYTES = GROUP * INDEX_BYTES;
    static constexpr bool IN_SLOTS = true;

    // Of a lane: of output lane / 4 of each tile its kept weights of groups 2 (lane % 4) and the next one, in a word; and indices of group
    // lane % 8 of outputs lane / 16, 2 + lane / 16, … of each tile, six to a word.
    struct Chunk {
        static constexpr int VALUES = KEPT * GROUPS * thread_per_output::LANES, INDICES = 128;  // of all lanes: numbers; words

        uint32_t right[TILES * KEPT], indices[8];

        // From a slot in shared memory: values as [vector][lane][16 bytes], then words as [vector][lane / 16][lane % 8][16 bytes].
        __device__ __forceinline__ void read(const uint8_t* slot, int lane) {
#pragma unroll
            for (int vector = 0; vector < TILES * KEPT / 4; ++vector)
                *reinterpret_cast<uint4*>(right + 4 * vector) = *reinterpret_cast<const uint4*>(slot + (vector * thread_per_output::LANES + lane) * 16);
#pragma unroll
            for (int vector = 0; vector < 2; ++vector)
                *reinterpret_cast<uint4*>(indices + 4 * vector) =
                    *reinterpret_cast<const uint4*>(slot + VALUES * 2 + (vector * 16 + lane / 16 * 8 + lane % 8) * 16);
        }
    };

    // Sums of a lane: [tile][16 rows of X][4].
    template <int ROWS>
    static __device__ __forceinline__ int row(int i, int lane) {
        return i / 4 % (ROWS / 16) * 16 + i % 4 / 2 * 8 + lane / 4;
    }
    template <int ROWS>
    static __device__ __forceinline__ int output(int i, int lane) {
        return i / 4 / (ROWS / 16) * 8 + lane % 4 * 2 + i % 2;
    }

    // x: in shared memory, the chunk's slots.
    template <typename T, int ROWS>
    static __device__ __forceinline__ void multiply(float (&sums)[ROWS], const Chunk& chunk, const uint8_t* x, int, int lane) {
        const uint32_t own = shared_address(x) + lane % 8 * SLOT_BYTES + lane / 8 % 2 * OCTET_BYTES;
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {  // of outputs of a tile
            const uint32_t even = lane / 4 == 2 * pair ? ~0u : 0, odd = lane / 4 == 2 * pair + 1 ? ~0u : 0;
#pragma unroll
            for (int kept = 0; kept < KEPT; ++kept) {
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    const int at = (tile * 4 + pair) * KEPT + kept, bit = at % OF_WORD * INDEX_BITS;
                    const uint32_t index = chunk.indices[at / OF_WORD] >> bit & (GROUP - 1), weights = chunk.right[tile * KEPT + kept];
#pragma unroll
                    for (int block = 0; block < ROWS / 16; ++block) {
                        const uint4 left = load_transposed_blocks(own + index * INDEX_BYTES + block * 2 * OCTET_BYTES);
                        multiply_add<T>(sums + (tile * (ROWS / 16) + block) * 4, left, weights & even, weights & odd);
                    }
                }
            }
        }
    }

    // Inputs of chunks [from, to) of ROWS rows into the slots of a segment that begins with chunk `first`, by all threads, from rows that
    // lie along K in vectors of 16 bytes; zeros beyond m and k. A warp takes eight rows of a chunk at a time, a lane eight inputs of each.
    template <typename T, int ROWS>
    static __device__ __forceinline__ void bring(const thread_per_output::Inputs& inputs, int first, int from, int to, uint8_t* target) {
        const int lane = threadIdx.x % thread_per_output::LANES, group = lane % 8, begin = lane / 8 * 8;
        const int warps = blockDim.x / thread_per_output::LANES, earlier = (from - first) * (ROWS / 8);  // what follows another piece is the next warps'
        for (int at = earlier + (threadIdx.x / thread_per_output::LANES + warps - earlier % warps) % warps; at < (to - first) * (ROWS / 8); at += warps) {
            const int input = (first + at / (ROWS / 8)) * INPUTS + group * GROUP + begin, first_row = at % (ROWS / 8) * 8;
            const T* x = static_cast<const T*>(inputs.x) + input;
            uint32_t words[8][4];  // of two neighbouring inputs
#pragma unroll
            for (int row = 0; row < 8; ++row) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (first_row + row < inputs.m && input < inputs.k) v = *reinterpret_cast<const uint4*>(x + (first_row + row) * inputs.row_stride);
                *reinterpret_cast<uint4*>(words[row]) = v;
            }
            uint8_t* slot = target + at * OCTET_BYTES + begin * INDEX_BYTES + group * SLOT_BYTES;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                uint32_t rows[4];
#pragma unroll
                for (int two = 0; two < 4; ++two) rows[two] = __byte_perm(words[2 * two][i / 2], words[2 * two + 1][i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
                *reinterpret_cast<uint4*>(slot + i * INDEX_BYTES) = make_uint4(rows[0], rows[1], rows[2], rows[3]);
            }
        }
    }

    // Chunks [first, last), one number at a time, for X whose inputs do not lie side by side.
    template <typename T, int ROWS>
    static __device__ __forceinline__ void bring_each(const thread_per_output::Inputs& inputs, int first, int last, uint8_t* target) {
        const T* x = static_cast<const T*>(inputs.x);
        const int count = (last - first) * INPUTS;
#pragma unroll 4
        for (int at = threadIdx.x; at < ROWS * count; at += blockDim.x) {
            const int row = at / count, of_these = at % count, input = first * INPUTS + of_these;
            T v = numbers::rounded<T>(0.0f);
            if (row < inputs.m && input < inputs.k)
                v = x[row * inputs.row_stride + (inputs.order == nullptr ? input : inputs.order[input]) * inputs.input_stride];
            uint8_t* octet = target + (of_these / INPUTS * (ROWS / 8) + row / 8) * OCTET_BYTES;
            *reinterpret_cast<T*>(octet + of_these % GROUP * INDEX_BYTES + of_these / GROUP % GROUPS * SLOT_BYTES + row % 8 * sizeof(T)) = v;
        }
    }
};

}  // namespace mma
