// X in shared memory: per input a slot with 128 bytes of rows, which the lanes of a warp read in units of 16 bytes.
#pragma once

#include "hopper.cuh"
#include "numbers.cuh"

namespace thread_per_row {

constexpr int K_BLOCK = 256;  // inputs per k-block; they are staged together
constexpr int SLOT_BYTES = 128, UNIT_BYTES = 16, UNITS = SLOT_BYTES / UNIT_BYTES;
template <typename T>
constexpr int ROWS = SLOT_BYTES / sizeof(T);  // rows of X per slot
template <typename T>
constexpr int UNIT_ROWS = UNIT_BYTES / sizeof(T);

// Layout of X; values as in common/thread_per_row.py.
enum Vectors {
    NONE = 0,        // any strides
    OF_ROWS = 1,     // rows contiguous for each input, in aligned units of 16 bytes
    OF_INPUTS = 2,   // inputs contiguous for each row, in aligned units of 16 bytes
};

struct Inputs {
    const void* x;
    long long row_stride, input_stride;  // strides in elements
    int m, k;
    int vectors;
};

// Waits until at most `pending` copy groups of this thread are in flight.
__device__ __forceinline__ void wait_for_copies(int pending) {
    switch (pending) {
        case 0: ::wait_for_copies<0>(); break;
        case 1: ::wait_for_copies<1>(); break;
        case 2: ::wait_for_copies<2>(); break;
        case 3: ::wait_for_copies<3>(); break;
        case 4: ::wait_for_copies<4>(); break;
        default: ::wait_for_copies<5>(); break;
    }
}

// Rows contiguous (OF_ROWS): each thread copies one unit of an input; eight neighboring threads copy a whole slot.
template <typename T>
__device__ __forceinline__ void copy_units(const Inputs& inputs, int first, int count, int first_row, uint8_t* slots) {
    const int unit = threadIdx.x % UNITS, row = first_row + unit * UNIT_ROWS<T>, step = blockDim.x / UNITS;
    const uint32_t bytes = row < inputs.m ? UNIT_BYTES : 0;
    int input = threadIdx.x / UNITS;
    const T* source = static_cast<const T*>(inputs.x) + (first + input) * inputs.input_stride + (bytes > 0 ? row : 0);
    uint32_t target = shared_address(slots) + input * SLOT_BYTES + unit * UNIT_BYTES;
#pragma unroll 4
    for (; input < count; input += step) {
        copy_16_bytes(target, source, bytes);
        source += step * inputs.input_stride;
        target += step * SLOT_BYTES;
    }
}

// Inputs contiguous (OF_INPUTS): each thread loads a square of UNIT_ROWS rows x UNIT_ROWS inputs, transposes it in
// registers, and stores one unit per input. Eight neighboring threads fill a slot.
template <typename T>
__device__ __forceinline__ void transpose_vectors(const Inputs& inputs, int first, int count, int first_row, uint8_t* slots) {
    constexpr int SIDE = UNIT_ROWS<T>;
    const int unit = threadIdx.x % UNITS, row = first_row + unit * SIDE, step = blockDim.x / UNITS * SIDE;
    const T* source = static_cast<const T*>(inputs.x) + row * inputs.row_stride + first;
#pragma unroll 2
    for (int input = threadIdx.x / UNITS * SIDE; input < count; input += step) {
        alignas(16) T square[SIDE][SIDE];  // [row][input]
#pragma unroll
        for (int i = 0; i < SIDE; ++i) {
            uint4 vector = make_uint4(0, 0, 0, 0);
            if (row + i < inputs.m) vector = *reinterpret_cast<const uint4*>(source + i * inputs.row_stride + input);
            *reinterpret_cast<uint4*>(square[i]) = vector;
        }
#pragma unroll
        for (int j = 0; j < SIDE; ++j) {
            alignas(16) T rows[SIDE];
#pragma unroll
            for (int i = 0; i < SIDE; ++i) rows[i] = square[i][j];
            *reinterpret_cast<uint4*>(slots + (input + j) * SLOT_BYTES + unit * UNIT_BYTES) = *reinterpret_cast<const uint4*>(rows);
        }
    }
}

// Any strides (NONE): the lanes of a warp read 32 neighboring inputs of a row; each stores one unit. These stores have
// bank conflicts: the lanes' units lie 128 bytes apart, in the same banks.
template <typename T>
__device__ __forceinline__ void transpose_numbers(const Inputs& inputs, int first, int count, int first_row, uint8_t* slots) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int tasks = (count + 31) / 32 * UNITS;
#pragma unroll 2
    for (int task = warp; task < tasks; task += warps) {
        const int input = task / UNITS * 32 + lane, unit = task % UNITS, row = first_row + unit * UNIT_ROWS<T>;
        if (input >= count) continue;
        alignas(16) T rows[UNIT_ROWS<T>];
        const T* source = static_cast<const T*>(inputs.x) + (first + input) * inputs.input_stride + row * inputs.row_stride;
#pragma unroll
        for (int i = 0; i < UNIT_ROWS<T>; ++i) rows[i] = row + i < inputs.m ? source[i * inputs.row_stride] : numbers::rounded<T>(0.0f);
        *reinterpret_cast<uint4*>(slots + input * SLOT_BYTES + unit * UNIT_BYTES) = *reinterpret_cast<const uint4*>(rows);
    }
}

// Stages inputs [first, first + count) of rows [first_row, first_row + ROWS) into their slots, zeros beyond m, and
// commits the copies as one group.
template <typename T>
__device__ __forceinline__ void stage(const Inputs& inputs, int first, int count, int first_row, uint8_t* slots) {
    if (inputs.vectors == OF_ROWS) copy_units<T>(inputs, first, count, first_row, slots);
    else if (inputs.vectors == OF_INPUTS) transpose_vectors<T>(inputs, first, count, first_row, slots);
    else transpose_numbers<T>(inputs, first, count, first_row, slots);
    commit_copies();
}

}  // namespace thread_per_row
