// What lanes of a warp read of the list of a group of outputs, four kept inputs at a time, and how they multiply by it.
#pragma once

#include "thread_per_row_inputs.cuh"

namespace thread_per_row {

constexpr int LANES = 32, QUAD = 4, SECTOR_BYTES = 32;

// Lists of all groups: group after group; where a k-block begins in a list need not be where a quad does.
struct Lists {
    const void* values;      // [entries, BLOCK]; every list fills whole quads
    const uint16_t* indices;  // [entries]: input mod 65536
    const int* pointers;     // [groups, k-blocks + 1]: first entry of each k-block, and the list's end
    int quads;               // of all lists
};

// LANE_UNITS: units of a slot that a lane has, 1 or 2. Two halve what a row costs of values and indices, which all lanes of a group read;
// one makes twice as many groups' worth of warps.
template <int LANE_UNITS>
constexpr int GROUP_LANES = UNITS / LANE_UNITS;  // that multiply by the same group of outputs
template <int LANE_UNITS>
constexpr int TOGETHER = LANES / GROUP_LANES<LANE_UNITS>;  // groups that a warp multiplies by at once

// The lane's unit `i`. Eight lanes read shared memory at once: of the two groups that these are where a lane has two units, one begins
// with the other half of its slot, so that they read different banks.
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

    // Through L1, since a line holds several.
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

    // Of a quad that lies only in part in entries [first, beyond), which are not empty: the others become zeros at an input of these.
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

    // origin: where index 0 would be. One instruction for the address: (index, other index) · (128, 0) + origin.
    __device__ __forceinline__ uint32_t address(int i, uint32_t origin) const {
        return __dp2a_lo(i < 2 ? indices.x : indices.y, i % 2 == 0 ? static_cast<uint32_t>(SLOT_BYTES) : SLOT_BYTES << 8, origin);
    }
};

// Where the lane reads, from the slots on: index 0 in its first unit, and how far from the first its second unit is.
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

// Quads [at, end). A pair is asked for before the pair ahead of it is multiplied; the arrays go on for two quads beyond the last list.
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

// Brings the beginning of bytes [first, beyond) of an array into L1, a sector to each lane of a group.
template <int LANE_UNITS>
__device__ __forceinline__ void touch(const void* array, long long first, long long beyond) {
    const long long at = first + threadIdx.x % GROUP_LANES<LANE_UNITS> * SECTOR_BYTES;
    if (at < beyond) asm volatile("{\n.reg .u32 unused;\nld.global.u8 unused, [%0];\n}" ::"l"(static_cast<const uint8_t*>(array) + at));
}

}  // namespace thread_per_row
