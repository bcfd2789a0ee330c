// Operands of kernels with one thread per output: chunks of 32 kept weights, and rows of X in shared memory.
#pragma once

#include <type_traits>

#include "numbers.cuh"
#include "streams.cuh"

namespace thread_per_output {

// A chunk: 32 kept weights of each of 32 outputs, one output per lane, with bit-packed input indices.
constexpr int CHUNK = 32, LANES = 32;

// BITS: width of an index. BLOCK: neighboring inputs that share an index; a lane's chunk has 32 / BLOCK indices.
template <typename T, int BITS, int BLOCK>
struct Chunk {
    static constexpr int VECTORS = CHUNK * sizeof(T) / 16;  // 16-byte vectors per lane
    static constexpr int WORDS = CHUNK / BLOCK * BITS / 32;
    static constexpr int VALUES = CHUNK * LANES;     // elements per chunk, over all lanes
    static constexpr int INDICES = WORDS * LANES;

    uint32_t values[4 * VECTORS];
    uint32_t indices[WORDS];

    // Loads this lane's part of a chunk. Values are stored as [vector][lane][16 bytes]; index words as [lane][4 words],
    // repeated, then [lane][remaining words]. Either way the loads of a warp are coalesced.
    __device__ __forceinline__ void load(const T* chunk, const uint32_t* words, int lane) {
        const char* source = reinterpret_cast<const char*>(chunk) + lane * 16;
#pragma unroll
        for (int vector = 0; vector < VECTORS; ++vector)
            streams::load_words(reinterpret_cast<uint32_t(&)[4]>(values[4 * vector]), source + vector * LANES * 16);
#pragma unroll
        for (int word = 0; word < WORDS; word += 4) {
            constexpr int REST = WORDS % 4;
            if constexpr (WORDS >= 4) {
                if (word + 4 <= WORDS)
                    streams::load_words(reinterpret_cast<uint32_t(&)[4]>(indices[word]), words + word * LANES + lane * 4);
            }
            if constexpr (REST > 0) {
                if (word + 4 > WORDS)
                    streams::load_words(reinterpret_cast<uint32_t(&)[REST]>(indices[word]), words + word * LANES + lane * REST);
            }
        }
    }

    // Index of value j, shifted left by SHIFT. j must be a compile-time constant after unrolling.
    template <int SHIFT>
    __device__ __forceinline__ uint32_t index(int j) const {
        const int bit = j / BLOCK * BITS, word = bit / 32, at = bit % 32;
        const uint32_t both = at + BITS > 32 ? __funnelshift_r(indices[word], indices[word + 1], at) : indices[word] >> at;
        if (at + BITS > 32) return both << SHIFT & ((1u << BITS) - 1) << SHIFT;
        return (at >= SHIFT ? indices[word] >> (at - SHIFT) : indices[word] << (SHIFT - at)) & ((1u << BITS) - 1) << SHIFT;
    }
};

// A slot of shared memory holds one input's values of all ROWS rows of X, side by side.
template <int V>
constexpr int LOG2 = V == 1 ? 0 : 1 + LOG2<V / 2>;
template <>
inline constexpr int LOG2<1> = 0;

// ROWS: rows of X per slot. A single row is stored as float, so that 32 neighboring inputs lie in 32 different banks.
template <typename T, int ROWS>
struct Slot {
    using Stored = std::conditional_t<ROWS == 1, float, T>;
    static constexpr int BYTES = ROWS * sizeof(Stored), SHIFT = LOG2<BYTES>, WORDS = BYTES / 4;

    // sums[r] += weight * slot[r] for each row r.
    static __device__ __forceinline__ void multiply(float (&sums)[ROWS], float weight, const uint8_t* slot) {
        uint32_t words[WORDS];
        if constexpr (WORDS >= 4) {
#pragma unroll
            for (int word = 0; word < WORDS; word += 4)
                *reinterpret_cast<uint4*>(words + word) = *reinterpret_cast<const uint4*>(slot + 4 * word);
        } else if constexpr (WORDS == 2) {
            *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(slot);
        } else {
            words[0] = *reinterpret_cast<const uint32_t*>(slot);
        }
#pragma unroll
        for (int row = 0; row < ROWS; ++row) sums[row] = fmaf(weight, numbers::in_words<Stored>(words, row), sums[row]);
    }
};

template <int WORDS>
__device__ __forceinline__ void store_slot(void* slot, const uint32_t* words) {
    if constexpr (WORDS >= 4) {
#pragma unroll
        for (int word = 0; word < WORDS; word += 4)
            static_cast<uint4*>(slot)[word / 4] = make_uint4(words[word], words[word + 1], words[word + 2], words[word + 3]);
    } else if constexpr (WORDS == 2) {
        *static_cast<uint2*>(slot) = make_uint2(words[0], words[1]);
    } else {
        *static_cast<uint32_t*>(slot) = words[0];
    }
}

// X in the caller's layout.
struct Inputs {
    const void* x;
    long long row_stride, input_stride;  // strides in elements
    const int* order;                    // input i is X's input order[i]; null: identity
    int m, k;
    int vectors;                         // whether rows are contiguous along K, in aligned 16-byte vectors
};

// Stages inputs [first, first + count) of rows [first_row, first_row + ROWS) into slots; zeros beyond m and k.
template <typename T, int ROWS>
__device__ __forceinline__ void stage(const Inputs& inputs, int first_row, int first, int count, uint8_t* slots) {
    using Stored = typename Slot<T, ROWS>::Stored;
    const T* x = static_cast<const T*>(inputs.x) + first_row * inputs.row_stride;
    Stored* target = reinterpret_cast<Stored*>(slots);
    constexpr int VECTOR = 16 / sizeof(T);
    int staged = 0;
    if constexpr (ROWS == 1) {
        if (inputs.vectors) {
            staged = max(0, min(count, inputs.k - first)) / VECTOR * VECTOR;
#pragma unroll 4
            for (int at = threadIdx.x * VECTOR; at < staged; at += blockDim.x * VECTOR) {
                uint32_t words[4];
                *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(x + first + at);
#pragma unroll
                for (int i = 0; i < VECTOR; i += 4)
                    *reinterpret_cast<float4*>(target + at + i) =
                        make_float4(numbers::in_words<T>(words, i), numbers::in_words<T>(words, i + 1), numbers::in_words<T>(words, i + 2),
                                    numbers::in_words<T>(words, i + 3));
            }
        }
    }
#pragma unroll 2
    for (int at = staged + threadIdx.x; at < count; at += blockDim.x) {
        const int input = first + at;
        alignas(16) Stored rows[ROWS];
        if (input < inputs.k) {
            const T* source = x + (inputs.order == nullptr ? input : inputs.order[input]) * inputs.input_stride;
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const T v = first_row + row < inputs.m ? source[row * inputs.row_stride] : numbers::rounded<T>(0.0f);
                if constexpr (ROWS == 1) rows[row] = numbers::widened(v);
                else rows[row] = v;
            }
        } else {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) rows[row] = numbers::rounded<Stored>(0.0f);
        }
        store_slot<Slot<T, ROWS>::WORDS>(target + at * ROWS, reinterpret_cast<const uint32_t*>(rows));
    }
}

}  // namespace thread_per_output
