// A slab of X in shared memory: 256 inputs, 256 bytes of rows of each, which the 32 lanes of a warp read 8 bytes at a time.
#pragma once

#include "numbers.cuh"

namespace slabs {

constexpr int INPUTS = 256, SLOT_BYTES = 256, UNIT_BYTES = 16, UNITS = SLOT_BYTES / UNIT_BYTES;
template <typename T>
constexpr int ROWS = SLOT_BYTES / sizeof(T);  // of X in a slab
template <typename T>
constexpr int UNIT_ROWS = UNIT_BYTES / sizeof(T);

struct Inputs {
    const void* x;
    long long row_stride, input_stride;  // elements
    int m, k;
    int vectors;  // whether an input's rows lie side by side in aligned units, as many as m has
};

// Unit `unit` of an input lies where unit ^ (input mod 16) would: neighbouring inputs then store into different banks.
__device__ __forceinline__ uint32_t unit_offset(int input, int unit) {
    return input * SLOT_BYTES + ((unit ^ input % UNITS) * UNIT_BYTES);
}

__device__ __forceinline__ void copy_unit(void* target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(target))), "l"(source)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Inputs [256 * slab, …) of rows [first_row, first_row + ROWS) into a buffer, zeros beyond m; ends with a committed group.
template <typename T>
__device__ __forceinline__ void stage(const Inputs& inputs, int slab, int first_row, uint8_t* buffer) {
    constexpr int PER_UNIT = UNIT_ROWS<T>;
    const int first = slab * INPUTS, count = min(INPUTS, inputs.k - first);
    const T* x = static_cast<const T*>(inputs.x);
    if (inputs.vectors) {
        const int unit = threadIdx.x % UNITS, row = first_row + unit * PER_UNIT;  // neighbours read neighbours along rows
        for (int input = threadIdx.x / UNITS; input < count; input += blockDim.x / UNITS) {
            uint8_t* target = buffer + unit_offset(input, unit);
            if (row < inputs.m) copy_unit(target, x + (first + input) * inputs.input_stride + row);
            else *reinterpret_cast<uint4*>(target) = make_uint4(0, 0, 0, 0);
        }
    } else {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;  // neighbours along inputs
        const int tasks = (count + 31) / 32 * UNITS;
#pragma unroll 2
        for (int task = warp; task < tasks; task += warps) {
            const int input = task / UNITS * 32 + lane, unit = task % UNITS, row = first_row + unit * PER_UNIT;
            alignas(16) T rows[PER_UNIT];
            const T* source = x + (first + input) * inputs.input_stride + row * inputs.row_stride;
#pragma unroll
            for (int i = 0; i < PER_UNIT; ++i)
                rows[i] = input < count && row + i < inputs.m ? source[i * inputs.row_stride] : numbers::rounded<T>(0.0f);
            if (input < count) *reinterpret_cast<uint4*>(buffer + unit_offset(input, unit)) = *reinterpret_cast<const uint4*>(rows);
        }
    }
    commit_copies();
}

}  // namespace slabs
