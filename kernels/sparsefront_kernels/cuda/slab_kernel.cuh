// Y = X · W^T + bias for a weight of single kept weights, or of small blocks, and any number of rows of X.
//
// The lanes of a warp own rows of X, and read them side by side from shared memory, a slab of 256 inputs at a time
// (slab_inputs.cuh): no bank conflicts, whatever inputs an output keeps. A warp owns GROUPS groups of BLOCK outputs; outputs of a
// group keep the same inputs, so that what is read of X serves them all. The weights that a group keeps in a slab are a list,
// in quads of four inputs; the quads of a warp lie one after the other. Each output is added up by one warp in one order.
#pragma once

#include "slab_inputs.cuh"
#include "streams.cuh"

namespace slabs {

constexpr int LANES = 32, MOST_WARPS = 16, QUAD = 4;

struct Problem {
    Inputs inputs;
    const void* values;      // [quads, 4, BLOCK]
    const uint16_t* places;  // [quads, 4]: the input's slot in its slab: input * 256 + input mod 16 * 16
    const int* pointers;     // [slabs, groups + 1]: first quad of each list
    const int* order;        // [groups]: the group that a list is of; null: in order
    const void* bias;
    int bias_type;
    void* y;                 // [n, m] contiguous
    int groups, slab_count;
    int stages;              // slabs of X in shared memory, 1 or 2
    int dependent_launch;
};

template <typename T, int BLOCK>
struct Quad {
    static constexpr int BYTES = QUAD * BLOCK * sizeof(T), WORDS = BYTES / 4;
    uint32_t values[WORDS];
    uint2 places;

    // The same for all lanes. Through L1, since a line holds several.
    __device__ __forceinline__ void load(const Problem& problem, int at) {
        const uint8_t* source = static_cast<const uint8_t*>(problem.values) + static_cast<long long>(at) * BYTES;
        if constexpr (WORDS >= 4) {
#pragma unroll
            for (int word = 0; word < WORDS; word += 4)
                *reinterpret_cast<uint4*>(values + word) = *reinterpret_cast<const uint4*>(source + 4 * word);
        } else {
            *reinterpret_cast<uint2*>(values) = *reinterpret_cast<const uint2*>(source);
        }
        places = reinterpret_cast<const uint2*>(problem.places)[at];
    }

    __device__ __forceinline__ uint32_t place(int i) const {
        const uint32_t word = i < 2 ? places.x : places.y;
        return i % 2 == 0 ? word & 0xFFFF : word >> 16;
    }
};

template <typename T>
constexpr int LANE_ROWS = 8 / sizeof(T);

template <typename T, int BLOCK>
__device__ __forceinline__ void multiply(float (&sums)[BLOCK][LANE_ROWS<T>], const Quad<T, BLOCK>& quad, const uint8_t* slab, uint32_t lane_offset) {
#pragma unroll
    for (int i = 0; i < QUAD; ++i) {
        uint32_t rows[2];
        *reinterpret_cast<uint2*>(rows) = *reinterpret_cast<const uint2*>(slab + (quad.place(i) ^ lane_offset));
#pragma unroll
        for (int output = 0; output < BLOCK; ++output) {
            const float weight = numbers::in_words<T>(quad.values, i * BLOCK + output);
#pragma unroll
            for (int row = 0; row < LANE_ROWS<T>; ++row)
                sums[output][row] = fmaf(weight, numbers::in_words<T>(rows, row), sums[output][row]);
        }
    }
}

// Brings lines of an array into L1, one to a lane: what a warp reads one after the other must not be waited for each time.
__device__ __forceinline__ void touch(const void* array, long long first_byte, long long last_byte) {
    const long long at = first_byte + threadIdx.x % LANES * 128;
    if (at < last_byte)
        asm volatile("{\n.reg .u32 unused;\nld.global.u8 unused, [%0];\n}" ::"l"(static_cast<const uint8_t*>(array) + at));
}

template <typename T, int BLOCK, int GROUPS>
__device__ __forceinline__ void write(const Problem& problem, const float (&sums)[GROUPS][BLOCK][LANE_ROWS<T>], int first, int first_row) {
    const int row = first_row + threadIdx.x % LANES * LANE_ROWS<T>, m = problem.inputs.m;
    if (row >= m) return;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        if (first + group >= problem.groups) return;
        const int stored = problem.order == nullptr ? first + group : problem.order[first + group];
#pragma unroll
        for (int output = 0; output < BLOCK; ++output) {
            const float bias = numbers::of_type(problem.bias, problem.bias_type, stored * BLOCK + output);
            T* target = static_cast<T*>(problem.y) + static_cast<long long>(stored * BLOCK + output) * m + row;
            alignas(8) T rows[LANE_ROWS<T>];
#pragma unroll
            for (int i = 0; i < LANE_ROWS<T>; ++i) rows[i] = numbers::rounded<T>(sums[group][output][i] + bias);
            if (m % LANE_ROWS<T> == 0) {
                *reinterpret_cast<uint2*>(target) = *reinterpret_cast<const uint2*>(rows);
            } else {
#pragma unroll
                for (int i = 0; i < LANE_ROWS<T>; ++i) {
                    if (row + i < m) target[i] = rows[i];
                }
            }
        }
    }
}

template <typename T, int BLOCK, int GROUPS>
__device__ __forceinline__ void product(const Problem& problem) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    const int first = (blockIdx.x * warps + warp) * GROUPS, first_row = blockIdx.y * ROWS<T>;
    const uint32_t lane_offset = lane * 8;
    const int buffer_bytes = min(INPUTS, problem.inputs.k) * SLOT_BYTES;
    if (problem.dependent_launch == streams::EARLY) streams::let_next_grid_start();
    if (problem.dependent_launch != streams::OFF) streams::wait_for_grid_before();

    float sums[GROUPS][BLOCK][LANE_ROWS<T>] = {};
    if (problem.slab_count > 0) stage<T>(problem.inputs, 0, first_row, shared);
    for (int slab = 0; slab < problem.slab_count; ++slab) {
        int bounds[GROUPS + 1];
        const int* pointers = problem.pointers + static_cast<long long>(slab) * (problem.groups + 1);
#pragma unroll
        for (int group = 0; group <= GROUPS; ++group) bounds[group] = pointers[min(first + group, problem.groups)];
        constexpr int QUAD_BYTES = Quad<T, BLOCK>::BYTES, PLACE_BYTES = 2 * QUAD;
        touch(problem.values, static_cast<long long>(bounds[0]) * QUAD_BYTES, static_cast<long long>(bounds[GROUPS]) * QUAD_BYTES);
        touch(problem.places, static_cast<long long>(bounds[0]) * PLACE_BYTES, static_cast<long long>(bounds[GROUPS]) * PLACE_BYTES);
        const bool ahead = problem.stages == 2 && slab + 1 < problem.slab_count;
        if (ahead) stage<T>(problem.inputs, slab + 1, first_row, shared + (slab + 1) % 2 * buffer_bytes);
        if (ahead) wait_for_copies<1>();
        else wait_for_copies<0>();
        __syncthreads();
        const uint8_t* buffer = shared + (problem.stages == 2 ? slab % 2 * buffer_bytes : 0);
        int at = bounds[0];
        Quad<T, BLOCK> quad{}, next{};
        if (at < bounds[GROUPS]) quad.load(problem, at);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            for (; at < bounds[group + 1]; ++at) {
                if (at + 1 < bounds[GROUPS]) next.load(problem, at + 1);
                multiply<T, BLOCK>(sums[group], quad, buffer, lane_offset);
                quad = next;
            }
        }
        __syncthreads();  // the slab is done with
        if (problem.stages == 1 && slab + 1 < problem.slab_count) stage<T>(problem.inputs, slab + 1, first_row, shared);
    }
    if (problem.dependent_launch == streams::LATE) streams::let_next_grid_start();
    write<T, BLOCK, GROUPS>(problem, sums, first, first_row);
}

template <typename Kernel>
cudaError_t launch(Kernel kernel, const Problem& problem, int rows, int groups, int warps, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3((problem.groups + warps * groups - 1) / (warps * groups), (problem.inputs.m + rows - 1) / rows);
    config.blockDim = dim3(LANES * warps);
    const int slabs = problem.stages < problem.slab_count ? problem.stages : problem.slab_count;
    const int inputs = problem.inputs.k < INPUTS ? problem.inputs.k : INPUTS;
    config.dynamicSmemBytes = slabs * inputs * SLOT_BYTES;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = problem.dependent_launch == streams::OFF ? 0 : 1;
    if (warps > MOST_WARPS || problem.stages < 1 || problem.stages > 2 || config.gridDim.y > 65535) return cudaErrorInvalidValue;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(config.dynamicSmemBytes));
    return error == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, problem) : error;
}

}  // namespace slabs
