// Inputs in shared memory: 128 bytes of rows of each, which eight lanes of a warp read 16 bytes at a time.
#pragma once

#include "hopper.cuh"
#include "numbers.cuh"

namespace slabs {

constexpr int SLAB = 256;  // inputs, that come together
constexpr int SLOT_BYTES = 128, UNIT_BYTES = 16, UNITS = SLOT_BYTES / UNIT_BYTES;
// From one slot to the next: a unit more than a slot, so that eight neighbouring inputs store a unit each into different banks.
constexpr int PITCH = SLOT_BYTES + UNIT_BYTES;
template <typename T>
constexpr int ROWS = SLOT_BYTES / sizeof(T);  // of X in shared memory
template <typename T>
constexpr int UNIT_ROWS = UNIT_BYTES / sizeof(T);

struct Inputs {
    const void* x;
    long long row_stride, input_stride;  // elements
    int m, k;
    int vectors;  // whether an input's rows lie side by side in aligned units, as many as m has
};

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most so many groups of this thread's copies are on their way.
__device__ __forceinline__ void wait_for_copies(int pending) {
    switch (pending) {
        case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
        case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
        case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
        case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
        default: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    }
}

// Rows side by side: a thread copies a unit of an input, and its neighbours the units beside.
template <typename T>
__device__ __forceinline__ void copy_units(const Inputs& inputs, int first, int count, int first_row, uint8_t* slots) {
    const int unit = threadIdx.x % UNITS, row = first_row + unit * UNIT_ROWS<T>, step = blockDim.x / UNITS;
    const uint32_t bytes = row < inputs.m ? UNIT_BYTES : 0;
    int input = threadIdx.x / UNITS;
    const T* source = static_cast<const T*>(inputs.x) + (first + input) * inputs.input_stride + (bytes > 0 ? row : 0);
    uint32_t target = shared_address(slots) + input * PITCH + unit * UNIT_BYTES;
#pragma unroll 4
    for (; input < count; input += step) {
        copy_16_bytes(target, source, bytes);
        source += step * inputs.input_stride;
        target += step * PITCH;
    }
}

// Any strides: lanes read neighbouring inputs of a row, and store the rows of a unit together.
template <typename T>
__device__ __forceinline__ void transpose_units(const Inputs& inputs, int first, int count, int first_row, uint8_t* slots) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int tasks = (count + 31) / 32 * UNITS;
#pragma unroll 4
    for (int task = warp; task < tasks; task += warps) {
        const int input = task / UNITS * 32 + lane, unit = task % UNITS, row = first_row + unit * UNIT_ROWS<T>;
        alignas(16) T rows[UNIT_ROWS<T>];
        const T* source = static_cast<const T*>(inputs.x) + (first + input) * inputs.input_stride + row * inputs.row_stride;
#pragma unroll
        for (int i = 0; i < UNIT_ROWS<T>; ++i)
            rows[i] = input < count && row + i < inputs.m ? source[i * inputs.row_stride] : numbers::rounded<T>(0.0f);
        if (input < count) *reinterpret_cast<uint4*>(slots + input * PITCH + unit * UNIT_BYTES) = *reinterpret_cast<const uint4*>(rows);
    }
}

// Inputs [first, first + count) of rows [first_row, first_row + ROWS) into their slots, zeros beyond m; a committed group.
template <typename T>
__device__ __forceinline__ void stage(const Inputs& inputs, int first, int count, int first_row, uint8_t* slots) {
    if (inputs.vectors) copy_units<T>(inputs, first, count, first_row, slots);
    else transpose_units<T>(inputs, first, count, first_row, slots);
    commit_copies();
}

}  // namespace slabs
