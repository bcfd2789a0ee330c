// What n_m_mma reads, on its way through shared memory by bulk copies: chunks of the weight a few ahead, and rows of X.
#pragma once

#include "../../cuda/hopper.cuh"
#include "../../cuda/thread_per_output_kernel.cuh"

namespace mma {

// The chunks of a warp, in `stages` slots in turn. Its first lane asks for them, as soon as a slot has been read.
template <typename T, typename Part>
struct ChunkRing {
    static constexpr uint32_t VALUE_BYTES = Part::VALUES * sizeof(T), INDEX_BYTES = Part::INDICES * 4, BYTES = VALUE_BYTES + INDEX_BYTES;

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

    __device__ __forceinline__ void ask(const thread_per_output::Share<T, Part>& share, int into) {
        const uint32_t there = barriers + 8 * into, target = shared_address(slots) + into * BYTES;
        barrier_arrive_expect(there, BYTES);
        copy_bulk(target, share.values + asked * Part::VALUES, VALUE_BYTES, there);
        copy_bulk(target + VALUE_BYTES, share.indices + asked * Part::INDICES, INDEX_BYTES, there);
    }

    // Asks for chunks first, first + step, … below `last`, as many as there are slots.
    __device__ __forceinline__ void begin(const thread_per_output::Share<T, Part>& share, int first, int last, int chunks_apart, int lane) {
        asked = first, beyond = last, step = chunks_apart;
        for (int into = 0; into < stages && asked < beyond; ++into, asked += step) {
            if (lane == 0) ask(share, into);
        }
    }

    // The next chunk into registers, and another one into its slot.
    __device__ __forceinline__ void take(const thread_per_output::Share<T, Part>& share, Part& chunk, int lane) {
        barrier_wait(barriers + 8 * slot, phase);
        chunk.read(slots + slot * BYTES, lane);
        __syncwarp();  // all lanes have read it
        if (asked < beyond) {
            if (lane == 0) ask(share, slot);
            asked += step;
        }
        if (++slot == stages) slot = 0, phase ^= 1;
    }
};

// Whether rows of X can be copied in bulk or as vectors: runs of a multiple of 16 bytes, wherever a chunk begins.
__device__ __forceinline__ bool in_vectors(const thread_per_output::Inputs& inputs) { return inputs.vectors && inputs.k % 8 == 0; }

constexpr int PIECES = 4;  // of the rows in shared memory, along K, each with a barrier of its own

// Where a piece of chunks [first, last) begins.
__device__ __forceinline__ int piece_begin(int first, int last, int piece) { return first + (last - first) * piece / PIECES; }

// Inputs of chunks [first, last) of the rows that X has, `pitch` bytes apart, by all threads. The barriers from `there` on, which count one
// arrival and bytes in either order, complete a phase as pieces arrive. A warp issues a copy of a lane after the other, each takes tens of
// cycles: so all warps share them. Rows beyond X's stay as they are: they make sums of their own, which nobody writes.
template <typename T, int INPUTS>
__device__ __forceinline__ void bring_rows(const thread_per_output::Inputs& inputs, int first, int last, uint8_t* target, int pitch, uint32_t there) {
    const int warps = blockDim.x / thread_per_output::LANES, own = threadIdx.x / thread_per_output::LANES + threadIdx.x % thread_per_output::LANES * warps;
    const T* x = static_cast<const T*>(inputs.x);
    const auto begin_of = [&](int piece) { return min(piece_begin(first, last, piece) * INPUTS, inputs.k); };
    if (threadIdx.x == 0) {
        for (int piece = 0; piece < PIECES; ++piece)
            barrier_arrive_expect(there + 8 * piece, inputs.m * (begin_of(piece + 1) - begin_of(piece)) * sizeof(T));
    }
    __syncwarp();
    for (int at = own; at < PIECES * inputs.m; at += blockDim.x) {
        const int piece = at / inputs.m, row = (at + blockIdx.x) % inputs.m;  // blocks begin with different rows, in different parts of L2
        const int from = begin_of(piece), count = begin_of(piece + 1) - from;
        if (count > 0)
            copy_bulk(shared_address(target) + row * pitch + (from - first * INPUTS) * sizeof(T), x + row * inputs.row_stride + from,
                      count * sizeof(T), there + 8 * piece);
    }
}

// Zeros for inputs beyond K in the last of chunks [first, last), by all threads: weights are zero there, what lies in shared memory may be NaN.
template <typename T, int INPUTS>
__device__ __forceinline__ void clear_beyond(const thread_per_output::Inputs& inputs, int rows, int first, int last, uint8_t* target, int pitch) {
    const int absent = last * INPUTS - inputs.k;
    for (int at = threadIdx.x; at < rows * absent; at += blockDim.x)
        *reinterpret_cast<T*>(target + at / absent * pitch + (inputs.k - first * INPUTS + at % absent) * sizeof(T)) = numbers::rounded<T>(0.0f);
}

// Inputs [first, first + count) of `rows` rows, by all threads, for X whose inputs do not lie side by side; zeros beyond m and k.
template <typename T>
__device__ __forceinline__ void gather_rows(const thread_per_output::Inputs& inputs, int rows, int first, int count, uint8_t* target, int pitch) {
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
