// How lanes read the list of kept inputs of a group of outputs, four entries (a quad) at a time, and multiply by it.
#pragma once

#include "thread_per_row_inputs.cuh"

namespace thread_per_row {

constexpr int LANES = 32, QUAD = 4, SECTOR_BYTES = 32;

// The lists of all groups, concatenated. A k-block need not begin at a quad boundary.
struct Lists {
    const void* values;      // [entries, BLOCK]; each list is padded to whole quads
    const uint16_t* indices;  // [entries]: input mod 65536
    const int* pointers;     // [groups, k-blocks + 1]: first entry of each k-block, then the end of the list
    int quads;               // quads in all lists together
};

// LANE_UNITS: units of a slot per lane, 1 or 2. With 2, loads of values and indices, which all lanes of a group share,
// cost half as much per row; with 1, there are twice as many warps' worth of work.
template <int LANE_UNITS>
constexpr int GROUP_LANES = UNITS / LANE_UNITS;  // lanes that share a group of outputs
template <int LANE_UNITS>
constexpr int TOGETHER = LANES / GROUP_LANES<LANE_UNITS>;  // groups of outputs per warp at a time

// Index of the lane's unit `i` in its slot. A shared-memory load serves eight lanes at a time. With two units per lane,
// these belong to two groups of outputs: one of the groups starts with the other half of its slot, so that both read
// different banks.
template <int LANE_UNITS>
__device__ __forceinline__ int unit_of_lane(int i) {
    const int lane = threadIdx.x % GROUP_LANES<LANE_UNITS>;
    if constexpr (LANE_UNITS == 1) return lane;
    else return lane + (threadIdx.x / GROUP_LANES<LANE_UNITS> + i) % 2 * GROUP_LANES<LANE_UNITS>;
}

template <typename T, int BLOCK, int LANE_UNITS>
using Sums = float[BLOCK][LANE_UNITS][UNIT_ROWS<T>];

template <typename T, int BLOCK>
struct Quad {
    static constexpr int BYTES = QUAD * BLOCK * sizeof(T), WORDS = BYTES / 4;
    uint32_t values[WORDS];
    uint2 indices;

    // Loads through L1, since a cache line holds several quads.
    __device__ __forceinline__ void load(const Lists& lists, int at) {
        const uint8_t* source = static_cast<const uint8_t*>(lists.values) + static_cast<long long>(at) * BYTES;
        if constexpr (WORDS >= 4) {
#pragma unroll
            for (int word = 0; word < WORDS; word += 4)
                *reinterpret_cast<uint4*>(values + word) = *reinterpret_cast<const uint4*>(source + 4 * word);
        } else {
            *reinterpret_cast<uint2*>(values) = *reinterpret_cast<const uint2*>(source);
        }
        indices = reinterpret_cast<const uint2*>(lists.indices)[at];
    }

    // Loads a quad that lies only partly in entries [first, beyond), a non-empty range. Entries outside get a zero
    // weight and the index of the nearest entry in the range.
    __device__ __forceinline__ void load_within(const Lists& lists, int at, int first, int beyond) {
        alignas(16) T own[QUAD][BLOCK];
        uint32_t inputs[QUAD];
#pragma unroll
        for (int i = 0; i < QUAD; ++i) {
            const int entry = at * QUAD + i, near = min(max(entry, first), beyond - 1);
            inputs[i] = lists.indices[near];
#pragma unroll
            for (int output = 0; output < BLOCK; ++output) {
                const T value = static_cast<const T*>(lists.values)[static_cast<long long>(near) * BLOCK + output];
                own[i][output] = near == entry ? value : numbers::rounded<T>(0.0f);
            }
        }
#pragma unroll
        for (int word = 0; word < WORDS; ++word) values[word] = reinterpret_cast<const uint32_t*>(own)[word];
        indices = make_uint2(inputs[0] | inputs[1] << 16, inputs[2] | inputs[3] << 16);
    }

    // Byte offset of entry i's slot in one instruction (dp2a): index * 128 + origin. origin: the offset that index 0
    // would have.
    __device__ __forceinline__ uint32_t address(int i, uint32_t origin) const {
        return __dp2a_lo(i < 2 ? indices.x : indices.y, i % 2 == 0 ? static_cast<uint32_t>(SLOT_BYTES) : SLOT_BYTES << 8, origin);
    }
};

// A lane's offsets from the first slot: of index 0 in its first unit, and the distance from its first unit to its
// second.
struct Origin {
    uint32_t first, to_second;

    template <int LANE_UNITS>
    static __device__ __forceinline__ Origin of_lane(int index) {
        const int first = unit_of_lane<LANE_UNITS>(0), second = unit_of_lane<LANE_UNITS>(1);
        return {static_cast<uint32_t>(first * UNIT_BYTES - index * SLOT_BYTES), static_cast<uint32_t>((second - first) * UNIT_BYTES)};
    }
};

template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void multiply(Sums<T, BLOCK, LANE_UNITS>& sums, const Quad<T, BLOCK>& quad, const uint8_t* slots, Origin origin) {
    uint4 rows[QUAD][LANE_UNITS];
#pragma unroll
    for (int i = 0; i < QUAD; ++i) {
        const uint32_t address = quad.address(i, origin.first);
        rows[i][0] = *reinterpret_cast<const uint4*>(slots + address);
        if constexpr (LANE_UNITS == 2) rows[i][1] = *reinterpret_cast<const uint4*>(slots + (address + origin.to_second));
    }
#pragma unroll
    for (int i = 0; i < QUAD; ++i) {
#pragma unroll
        for (int output = 0; output < BLOCK; ++output) {
            const float weight = numbers::in_words<T>(quad.values, i * BLOCK + output);
#pragma unroll
            for (int unit = 0; unit < LANE_UNITS; ++unit) {
#pragma unroll
                for (int row = 0; row < UNIT_ROWS<T>; ++row) {
                    const float x = numbers::in_words<T>(reinterpret_cast<const uint32_t*>(&rows[i][unit]), row);
                    sums[output][unit][row] = fmaf(weight, x, sums[output][unit][row]);
                }
            }
        }
    }
}

template <typename T, int BLOCK>
struct QuadPair {
    Quad<T, BLOCK> even, odd;

    __device__ __forceinline__ void load(const Lists& lists, int at) {
        even.load(lists, at);
        odd.load(lists, at + 1);
    }

    template <int LANE_UNITS>
    __device__ __forceinline__ void multiply_by(Sums<T, BLOCK, LANE_UNITS>& sums, const uint8_t* slots, Origin origin) const {
        multiply<T, BLOCK, LANE_UNITS>(sums, even, slots, origin);
        multiply<T, BLOCK, LANE_UNITS>(sums, odd, slots, origin);
    }
};

// Multiplies by quads [at, end). Double buffered: loads the next pair of quads before multiplying by the current one.
// The arrays are padded by two quads after the last list, since loads run ahead of the end.
template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void multiply_quads(Sums<T, BLOCK, LANE_UNITS>& sums, const Lists& lists, int at, int end, const uint8_t* slots, Origin origin) {
    if (at >= end) return;
    QuadPair<T, BLOCK> first, second;
    first.load(lists, at);
    for (; at + 4 <= end; at += 4) {
        second.load(lists, at + 2);
        first.template multiply_by<LANE_UNITS>(sums, slots, origin);
        first.load(lists, at + 4);
        second.template multiply_by<LANE_UNITS>(sums, slots, origin);
    }
    if (at + 2 <= end) {
        second.even.load(lists, at + 2);
        first.template multiply_by<LANE_UNITS>(sums, slots, origin);
        first.even = second.even;
        at += 2;
    }
    if (at < end) multiply<T, BLOCK, LANE_UNITS>(sums, first.even, slots, origin);
}

// Touches the start of bytes [first, beyond) of an array to bring it into L1: one sector per lane of a group.
template <int LANE_UNITS>
__device__ __forceinline__ void touch(const void* array, long long first, long long beyond) {
    const long long at = first + threadIdx.x % GROUP_LANES<LANE_UNITS> * SECTOR_BYTES;
    if (at < beyond) asm volatile("{\n.reg .u32 unused;\nld.global.u8 unused, [%0];\n}" ::"l"(static_cast<const uint8_t*>(array) + at));
}

}  // namespace thread_per_row
