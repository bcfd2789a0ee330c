// What n_m_mma reads, on its way through shared memory by bulk copies: chunks of the weight a few ahead, and rows of X.
#pragma once

#include "../../cuda/hopper.cuh"
#include "../../cuda/lane_kernel.cuh"

namespace mma {

// The chunks of a warp, in `stages` slots in turn. Its first lane asks for them, as soon as a slot has been read.
template <typename T, typename Part>
struct ChunkRing {
    static constexpr uint32_t VALUE_BYTES = Part::VALUES * sizeof(T), PLACE_BYTES = Part::PLACES * 4, BYTES = VALUE_BYTES + PLACE_BYTES;

    uint8_t* slots;
    uint32_t barriers;  // one to a slot: that its chunk is there
    int stages, slot = 0, phase = 0;
    int asked, beyond, step;  // the next chunk to ask for; the strip's end; between chunks of the warp

    // Before the block's threads meet for the first time; `lane` 0 initialises the barriers.
    __device__ __forceinline__ ChunkRing(uint8_t* slots, uint32_t barriers, int stages, int lane)
        : slots(slots), barriers(barriers), stages(stages), asked(0), beyond(0), step(1) {
        if (lane == 0) {
            for (int i = 0; i < stages; ++i) barrier_init(barriers + 8 * i, 1);
        }
    }

    __device__ __forceinline__ void ask(const lanes::Share<T, Part>& share, int into) {
        const uint32_t there = barriers + 8 * into, target = shared_address(slots) + into * BYTES;
        barrier_arrive_expect(there, BYTES);
        copy_bulk(target, share.values + asked * Part::VALUES, VALUE_BYTES, there);
        copy_bulk(target + VALUE_BYTES, share.places + asked * Part::PLACES, PLACE_BYTES, there);
    }

    // Asks for chunks first, first + step, … below `last`, as many as there are slots.
    __device__ __forceinline__ void begin(const lanes::Share<T, Part>& share, int first, int last, int chunks_apart, int lane) {
        asked = first, beyond = last, step = chunks_apart;
        for (int into = 0; into < stages && asked < beyond; ++into, asked += step) {
            if (lane == 0) ask(share, into);
        }
    }

    // The next chunk into registers, and another one into its slot.
    __device__ __forceinline__ void take(const lanes::Share<T, Part>& share, Part& chunk, int lane) {
        static_assert(Part::WORDS == 2 || Part::WORDS == 5);
        barrier_wait(barriers + 8 * slot, phase);
        const uint8_t* source = slots + slot * BYTES;
#pragma unroll
        for (int vector = 0; vector < Part::VECTORS; ++vector)
            *reinterpret_cast<uint4*>(chunk.values + 4 * vector) = *reinterpret_cast<const uint4*>(source + (vector * lanes::LANES + lane) * 16);
        const uint8_t* words = source + VALUE_BYTES;
        if constexpr (Part::WORDS == 2) {
            *reinterpret_cast<uint2*>(chunk.places) = *reinterpret_cast<const uint2*>(words + lane * 8);
        } else {
            *reinterpret_cast<uint4*>(chunk.places) = *reinterpret_cast<const uint4*>(words + lane * 16);
            chunk.places[4] = *reinterpret_cast<const uint32_t*>(words + 16 * lanes::LANES + lane * 4);
        }
        __syncwarp();  // all lanes have read it
        if (asked < beyond) {
            if (lane == 0) ask(share, slot);
            asked += step;
        }
        if (++slot == stages) slot = 0, phase ^= 1;
    }
};

// Whether rows of X can be copied in bulk: runs of a multiple of 16 bytes, wherever a chunk begins.
__device__ __forceinline__ bool in_bulk(const lanes::Inputs& inputs) { return inputs.vectors && inputs.k % 8 == 0; }

constexpr int PIECES = 4;  // of the rows in shared memory, along K, each with a barrier of its own

// Where a piece of chunks [first, last) begins.
__device__ __forceinline__ int piece_begin(int first, int last, int piece) { return first + (last - first) * piece / PIECES; }

// Inputs of chunks [first, last), INPUTS to each, of the rows that X has, `pitch` bytes apart, by one warp. The barriers from `there` on
// complete a phase as pieces arrive. Rows beyond X's stay as they are: they make sums of their own, which nobody writes.
template <typename T, int INPUTS>
__device__ __forceinline__ void bring_rows(const lanes::Inputs& inputs, int rows, int first, int last, uint8_t* target, int pitch, uint32_t there) {
    const int lane = threadIdx.x % lanes::LANES, brought = min(rows, inputs.m), beyond = min(last * INPUTS, inputs.k);
    if (threadIdx.x < lanes::LANES) {
        const T* x = static_cast<const T*>(inputs.x);
        for (int piece = 0; piece < PIECES; ++piece) {
            const int from = piece_begin(first, last, piece) * INPUTS, to = min(piece_begin(first, last, piece + 1) * INPUTS, beyond);
            const uint32_t bytes = (to - from) * sizeof(T);
            if (lane == 0) barrier_arrive_expect(there + 8 * piece, brought * bytes);
            __syncwarp();
            if (bytes == 0) continue;
            for (int row = lane; row < brought; row += lanes::LANES)
                copy_bulk(shared_address(target) + row * pitch + (from - first * INPUTS) * sizeof(T), x + row * inputs.row_stride + from, bytes,
                          there + 8 * piece);
        }
    }
}

// Zeros for inputs beyond K in the last of chunks [first, last), by all threads: weights are zero there, what lies in shared memory may be NaN.
template <typename T, int INPUTS>
__device__ __forceinline__ void clear_beyond(const lanes::Inputs& inputs, int rows, int first, int last, uint8_t* target, int pitch) {
    const int absent = last * INPUTS - inputs.k;
    for (int at = threadIdx.x; at < rows * absent; at += blockDim.x)
        *reinterpret_cast<T*>(target + at / absent * pitch + (inputs.k - first * INPUTS + at % absent) * sizeof(T)) = numbers::rounded<T>(0.0f);
}

// Inputs [first, first + count) of `rows` rows, by all threads, for X whose inputs do not lie side by side; zeros beyond m and k.
template <typename T>
__device__ __forceinline__ void gather_rows(const lanes::Inputs& inputs, int rows, int first, int count, uint8_t* target, int pitch) {
    const T* x = static_cast<const T*>(inputs.x);
#pragma unroll 4
    for (int at = threadIdx.x; at < rows * count; at += blockDim.x) {
        const int row = at / count, input = at % count;
        T v = numbers::rounded<T>(0.0f);
        if (row < inputs.m && first + input < inputs.k) {
            const int from = inputs.order == nullptr ? first + input : inputs.order[first + input];
            v = x[row * inputs.row_stride + from * inputs.input_stride];
        }
        *reinterpret_cast<T*>(target + row * pitch + input * sizeof(T)) = v;
    }
}

}  // namespace mma
