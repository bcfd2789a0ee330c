// What eight lanes of a warp read of the list of a group of outputs, four kept inputs at a time, and how they multiply by it.
#pragma once

#include "slab_inputs.cuh"

namespace slabs {

constexpr int QUAD = 4, SECTOR_BYTES = 32;

// Lists of all groups: group after group; where a slab begins in a list need not be where a quad does.
struct Lists {
    const void* values;      // [entries, BLOCK]; every list fills whole quads
    const uint16_t* places;  // [entries]: input mod 65536
    const int* pointers;     // [groups, slabs + 1]: first entry of each slab, and the list's end
};

template <typename T>
constexpr int LANE_ROWS = UNIT_ROWS<T>;
template <typename T, int BLOCK>
using Sums = float[BLOCK][LANE_ROWS<T>];

template <typename T, int BLOCK>
struct Quad {
    static constexpr int BYTES = QUAD * BLOCK * sizeof(T), WORDS = BYTES / 4;
    uint32_t values[WORDS];
    uint2 places;

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
        places = reinterpret_cast<const uint2*>(lists.places)[at];
    }

    // Of a quad that lies only in part in entries [first, beyond), which are not empty: the others become zeros at an input of these.
    __device__ __forceinline__ void load_within(const Lists& lists, int at, int first, int beyond) {
        alignas(16) T own[QUAD][BLOCK];
        uint32_t inputs[QUAD];
#pragma unroll
        for (int i = 0; i < QUAD; ++i) {
            const int entry = at * QUAD + i, near = min(max(entry, first), beyond - 1);
            inputs[i] = lists.places[near];
#pragma unroll
            for (int output = 0; output < BLOCK; ++output) {
                const T value = static_cast<const T*>(lists.values)[static_cast<long long>(near) * BLOCK + output];
                own[i][output] = near == entry ? value : numbers::rounded<T>(0.0f);
            }
        }
#pragma unroll
        for (int word = 0; word < WORDS; ++word) values[word] = reinterpret_cast<const uint32_t*>(own)[word];
        places = make_uint2(inputs[0] | inputs[1] << 16, inputs[2] | inputs[3] << 16);
    }

    // origin: where place 0 would be. One instruction for the address: (place, other place) · (PITCH, 0) + origin.
    __device__ __forceinline__ uint32_t address(int i, uint32_t origin) const {
        return __dp2a_lo(i < 2 ? places.x : places.y, i % 2 == 0 ? static_cast<uint32_t>(PITCH) : PITCH << 8, origin);
    }
};

template <typename T, int BLOCK>
__device__ __forceinline__ void multiply(Sums<T, BLOCK>& sums, const Quad<T, BLOCK>& quad, const uint8_t* slots, uint32_t origin) {
    uint4 rows[QUAD];
#pragma unroll
    for (int i = 0; i < QUAD; ++i) rows[i] = *reinterpret_cast<const uint4*>(slots + quad.address(i, origin));
#pragma unroll
    for (int i = 0; i < QUAD; ++i) {
#pragma unroll
        for (int output = 0; output < BLOCK; ++output) {
            const float weight = numbers::in_words<T>(quad.values, i * BLOCK + output);
#pragma unroll
            for (int row = 0; row < LANE_ROWS<T>; ++row)
                sums[output][row] = fmaf(weight, numbers::in_words<T>(reinterpret_cast<const uint32_t*>(rows + i), row), sums[output][row]);
        }
    }
}

// Quads [at, end), two ahead of what is multiplied; the arrays go on for two quads beyond the last list.
template <typename T, int BLOCK>
__device__ __forceinline__ void multiply_quads(Sums<T, BLOCK>& sums, const Lists& lists, int at, int end, const uint8_t* slots, uint32_t origin) {
    if (at >= end) return;
    Quad<T, BLOCK> even, odd;
    even.load(lists, at);
    odd.load(lists, at + 1);
    for (; at + 1 < end; at += 2) {
        multiply<T, BLOCK>(sums, even, slots, origin);
        even.load(lists, at + 2);
        multiply<T, BLOCK>(sums, odd, slots, origin);
        odd.load(lists, at + 3);
    }
    if (at < end) multiply<T, BLOCK>(sums, even, slots, origin);
}

// Brings the beginning of bytes [first, beyond) of an array into L1, a sector to each of a group's eight lanes.
__device__ __forceinline__ void touch(const void* array, long long first, long long beyond) {
    const long long at = first + threadIdx.x % UNITS * SECTOR_BYTES;
    if (at < beyond) asm volatile("{\n.reg .u32 unused;\nld.global.u8 unused, [%0];\n}" ::"l"(static_cast<const uint8_t*>(array) + at));
}

}  // namespace slabs
