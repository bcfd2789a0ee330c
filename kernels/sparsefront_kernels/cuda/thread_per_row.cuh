// Y = X · W^T + bias for a weight with single kept weights, or small blocks of them, and any number of rows of X.
//
// A thread owns rows of X: four or eight lanes of a warp cover 128 bytes of rows, which they read side by side from
// shared memory, so there are no bank conflicts, whichever inputs an output keeps. A warp multiplies by eight or four
// groups of BLOCK outputs at once; the outputs of a group keep the same inputs, so each load of X serves all of them. A
// group's kept inputs are a list. The CTAs of a cluster split K. Each CTA goes over its
// k-blocks of 256 inputs in passes, with as many k-blocks per pass as fit into shared memory. Sums are added in a fixed
// order.
#pragma once

#include "hopper.cuh"
#include "numbers.cuh"
#include "streams.cuh"

namespace thread_per_row {

// X in shared memory: per input a slot with 128 bytes of rows, which the lanes of a warp read in units of 16 bytes.
constexpr int K_BLOCK = 256;  // inputs per k-block; they are staged together
constexpr int SLOT_BYTES = 128, UNIT_BYTES = 16, UNITS = SLOT_BYTES / UNIT_BYTES;
template <typename T>
constexpr int ROWS = SLOT_BYTES / sizeof(T);  // rows of X per slot
template <typename T>
constexpr int UNIT_ROWS = UNIT_BYTES / sizeof(T);

// Layout of X; values as in cuda/thread_per_row.py.
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

// How lanes read the list of kept inputs of a group of outputs, four entries (a quad) at a time, and multiply by it.
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

// Accumulators of a CTA: kept in shared memory between passes over K and for the reduction across the cluster, then
// stored to Y.
constexpr int MOST_SPLITS = 8;  // CTAs per cluster

struct Outputs {
    void* y;           // [n, m], contiguous
    const void* bias;
    int bias_type;
    const int* order;  // [groups]: output group of each list; null: identity
    int m, groups;
};

// Stores a unit's rows of one output, with the bias.
template <typename T>
__device__ __forceinline__ void write_rows(const Outputs& outputs, int output, int row, const float (&sums)[UNIT_ROWS<T>]) {
    const int m = outputs.m;
    if (row >= m) return;
    const float bias = numbers::of_type(outputs.bias, outputs.bias_type, output);
    T* target = static_cast<T*>(outputs.y) + static_cast<long long>(output) * m + row;
    alignas(16) T rows[UNIT_ROWS<T>];
#pragma unroll
    for (int i = 0; i < UNIT_ROWS<T>; ++i) rows[i] = numbers::rounded<T>(sums[i] + bias);
    if (m % UNIT_ROWS<T> == 0) {
        *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(rows);
    } else {
#pragma unroll
        for (int i = 0; i < UNIT_ROWS<T>; ++i) {
            if (row + i < m) target[i] = rows[i];
        }
    }
}

__device__ __forceinline__ int stored_group(const Outputs& outputs, int position) {
    return outputs.order == nullptr ? position : outputs.order[position];
}

template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void write_group(const Outputs& outputs, int position, int first_row, const Sums<T, BLOCK, LANE_UNITS>& sums) {
    const int group = stored_group(outputs, position);
#pragma unroll
    for (int output = 0; output < BLOCK; ++output) {
#pragma unroll
        for (int i = 0; i < LANE_UNITS; ++i)
            write_rows<T>(outputs, group * BLOCK + output, first_row + unit_of_lane<LANE_UNITS>(i) * UNIT_ROWS<T>, sums[output][i]);
    }
}

// Where shared memory keeps four of a lane's sums of a group, in [groups of the CTA, BLOCK, ROWS] floats. Until the
// cluster reduction, only this lane accesses them.
template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ float4* kept_sums(float* sums_of_block, int group, int output, int unit, int row) {
    return reinterpret_cast<float4*>(sums_of_block + (group * BLOCK + output) * ROWS<T> + unit_of_lane<LANE_UNITS>(unit) * UNIT_ROWS<T> + row);
}

// If `add`, adds the kept sums of the group to `sums`; if `keep`, keeps the result because more passes or a cluster
// reduction follow.
template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void add_and_keep(Sums<T, BLOCK, LANE_UNITS>& sums, float* sums_of_block, int group, bool add, bool keep) {
#pragma unroll
    for (int output = 0; output < BLOCK; ++output) {
#pragma unroll
        for (int unit = 0; unit < LANE_UNITS; ++unit) {
#pragma unroll
            for (int row = 0; row < UNIT_ROWS<T>; row += 4) {
                float4* const kept = kept_sums<T, BLOCK, LANE_UNITS>(sums_of_block, group, output, unit, row);
                float* const own = sums[output][unit] + row;
                if (add) own[0] += kept->x, own[1] += kept->y, own[2] += kept->z, own[3] += kept->w;
                if (keep) *kept = make_float4(own[0], own[1], own[2], own[3]);
            }
        }
    }
}

// Cluster reduction: each CTA adds up and stores its share of the lines of `groups` groups of outputs, adding the CTAs
// in rank order.
template <typename T, int BLOCK>
__device__ __forceinline__ void add_up_and_write(const Outputs& outputs, float* sums_of_block, int first_group, int groups, int first_row,
                                                 int rank, int splits) {
    const int row = threadIdx.x % UNITS * UNIT_ROWS<T>;
    const int lines = min(groups, outputs.groups - first_group) * BLOCK;  // number of outputs
    for (int line = threadIdx.x / UNITS * splits + rank; line < lines; line += blockDim.x / UNITS * splits) {
        const uint32_t kept = shared_address(sums_of_block + line * ROWS<T> + row);
        float sums[UNIT_ROWS<T>] = {};
#pragma unroll
        for (int i = 0; i < UNIT_ROWS<T>; i += 4) {
            float4 parts[MOST_SPLITS];  // issue all loads before waiting for the first
#pragma unroll
            for (int block = 0; block < MOST_SPLITS; ++block) parts[block] = block < splits ? load_from_cluster(kept + i * 4, block) : float4{};
#pragma unroll
            for (int block = 0; block < MOST_SPLITS; ++block)
                sums[i] += parts[block].x, sums[i + 1] += parts[block].y, sums[i + 2] += parts[block].z, sums[i + 3] += parts[block].w;
        }
        write_rows<T>(outputs, stored_group(outputs, first_group + line / BLOCK) * BLOCK + line % BLOCK, first_row + row, sums);
    }
}

constexpr int MOST_WARPS = 16;
constexpr int DISTINCT_K_BLOCKS = 65536 / K_BLOCK;  // k-blocks before 16-bit indices wrap around

struct Problem {
    Inputs inputs;
    Lists lists;
    Outputs outputs;
    int k_block_count;
    int sets;    // sets of TOGETHER groups per warp
    int splits;  // CTAs per cluster
    int k_blocks;   // k-blocks in shared memory at once, at most 7
    int dependent_launch;
};

// The k-blocks that are in shared memory during one pass.
struct Pass {
    int first, last;

    __device__ __forceinline__ Pass(const Problem& problem, int first, int end)
        : first(first), last(min(min(first + problem.k_blocks, end), (first / DISTINCT_K_BLOCKS + 1) * DISTINCT_K_BLOCKS)) {}
};

template <typename T>
__device__ __forceinline__ void bring(const Problem& problem, const Pass& pass, int first_row, uint8_t* slots) {
    for (int k_block = pass.first; k_block < pass.last; ++k_block) {
        const int count = min(K_BLOCK, problem.inputs.k - k_block * K_BLOCK);
        stage<T>(problem.inputs, k_block * K_BLOCK, count, first_row, slots + (k_block - pass.first) * K_BLOCK * SLOT_BYTES);
    }
}

// First entry of each k-block in the list at a position.
__device__ __forceinline__ const int* pointers_of(const Problem& problem, int position) {
    return problem.lists.pointers + static_cast<long long>(position) * (problem.k_block_count + 1);
}

// The entries of a list that belong to a pass; empty beyond the last group.
struct Range {
    int first = 0, beyond = 0;

    __device__ __forceinline__ Range() {}
    __device__ __forceinline__ Range(const Problem& problem, const Pass& pass, int position) {
        if (position >= problem.outputs.groups) return;
        const int* pointers = pointers_of(problem, position);
        first = pointers[pass.first];
        beyond = pointers[pass.last];
    }
};

// Touches the start of a list, to overlap the latency of loads that would otherwise be exposed one after the other.
template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void ask_for(const Lists& lists, const Range& range) {
    constexpr int ENTRY = BLOCK * sizeof(T);
    const int first = range.first, beyond = range.beyond;
    touch<LANE_UNITS>(lists.values, static_cast<long long>(first) * ENTRY, static_cast<long long>(beyond) * ENTRY);
    touch<LANE_UNITS>(lists.values, static_cast<long long>(first) * ENTRY + GROUP_LANES<LANE_UNITS> * SECTOR_BYTES, static_cast<long long>(beyond) * ENTRY);
    touch<LANE_UNITS>(lists.indices, static_cast<long long>(first) * 2, static_cast<long long>(beyond) * 2);
}

// Prefetches this CTA's equal share of an array into L2, whichever CTAs read it, so that the weight arrives while the
// preceding kernel runs.
__device__ __forceinline__ void prefetch_share(const void* array, long long bytes) {
    constexpr int VECTOR = 16, MOST = 32768;
    const long long vectors = bytes / VECTOR, blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
    const long long first = vectors * block / blocks, count = vectors * (block + 1) / blocks - first;
    streams::prefetch(static_cast<const uint8_t*>(array) + first * VECTOR, static_cast<uint32_t>(min(count * VECTOR, static_cast<long long>(MOST))));
}

template <typename T, int BLOCK>
__device__ __forceinline__ void prefetch_lists(const Problem& problem) {
    const long long entries = static_cast<long long>(problem.lists.quads) * QUAD;
    if (threadIdx.x == 0) prefetch_share(problem.lists.values, entries * BLOCK * sizeof(T));
    if (threadIdx.x == LANES / 2) prefetch_share(problem.lists.indices, entries * 2);
    if (threadIdx.x == LANES) prefetch_share(problem.lists.pointers, static_cast<long long>(problem.outputs.groups) * (problem.k_block_count + 1) * 4);
}

// How many quads the lists of a warp may advance together while their k-blocks have arrived: the minimum over lists,
// ignoring those with nothing left. If each list advanced on its own, lanes would diverge and wait for one another at
// every k-block.
__device__ __forceinline__ int together(int come, int start, int whole_end) {
    constexpr int ANY = 1 << 30;
    const int quads = __reduce_min_sync(~0u, come >= whole_end ? ANY : max(come - start, 0));
    return min(quads, max(whole_end - start, 0));
}

template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void product(const Problem& problem) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    const int rank = blockIdx.x % problem.splits, of_block = TOGETHER<LANE_UNITS> * warps * problem.sets;
    const int first_group = blockIdx.x / problem.splits * of_block, first_row = blockIdx.y * ROWS<T>;
    const int begin = static_cast<int>(static_cast<long long>(problem.k_block_count) * rank / problem.splits);
    const int end = static_cast<int>(static_cast<long long>(problem.k_block_count) * (rank + 1) / problem.splits);
    const int resident = min(problem.k_blocks * K_BLOCK, problem.inputs.k);
    float* const sums_of_block = reinterpret_cast<float*>(shared + resident * SLOT_BYTES);
    if (problem.dependent_launch == streams::EARLY) pdl_launch_dependents();
    if (problem.dependent_launch != streams::OFF) {
        prefetch_lists<T, BLOCK>(problem);
        pdl_wait();
    }

    const int group_of_set = warp * TOGETHER<LANE_UNITS> + threadIdx.x % LANES / GROUP_LANES<LANE_UNITS>;  // index within the CTA
    int next = begin;
    do {
        const Pass pass(problem, next, end);
        next = pass.last;
        if (pass.first > begin) __syncthreads();  // all warps are done with X of the previous pass
        bring<T>(problem, pass, first_row, shared);
        const Origin origin = Origin::of_lane<LANE_UNITS>(pass.first % DISTINCT_K_BLOCKS * K_BLOCK);
        Range now(problem, pass, first_group + group_of_set);
        Range next_set = problem.sets > 1 ? Range(problem, pass, first_group + group_of_set + warps * TOGETHER<LANE_UNITS>) : Range();
        ask_for<T, BLOCK, LANE_UNITS>(problem.lists, now);
        for (int set = 0; set < problem.sets; ++set) {
            const int group = group_of_set + set * warps * TOGETHER<LANE_UNITS>, position = first_group + group;
            const bool own = position < problem.outputs.groups;
            const int first = now.first, beyond = now.beyond;
            if (set + 1 < problem.sets) ask_for<T, BLOCK, LANE_UNITS>(problem.lists, next_set);
            now = next_set;
            next_set = set + 2 < problem.sets ? Range(problem, pass, position + 2 * warps * TOGETHER<LANE_UNITS>) : Range();

            Sums<T, BLOCK, LANE_UNITS> sums = {};
            const int start = (first + QUAD - 1) / QUAD, whole_end = beyond / QUAD;
            int at = start;
            for (int k_block = set == 0 ? pass.first : pass.last - 1; k_block < pass.last; ++k_block) {  // the first set waits for each k-block
                int here = whole_end;
                if (set == 0) {
                    wait_for_copies(pass.last - 1 - k_block);
                    __syncthreads();
                    if (k_block + 1 < pass.last) here = start + together(own ? pointers_of(problem, position)[k_block + 1] / QUAD : whole_end, start, whole_end);
                }
                multiply_quads<T, BLOCK, LANE_UNITS>(sums, problem.lists, at, here, shared, origin);
                at = max(at, here);
            }
            if (first % QUAD != 0 || beyond % QUAD != 0) {  // quads that straddle the k-blocks before or after this pass
                Quad<T, BLOCK> quad;
                if (first % QUAD != 0 && first < beyond) {
                    quad.load_within(problem.lists, first / QUAD, first, beyond);
                    multiply<T, BLOCK, LANE_UNITS>(sums, quad, shared, origin);
                }
                if (beyond % QUAD != 0 && whole_end * QUAD >= first) {
                    quad.load_within(problem.lists, whole_end, first, beyond);
                    multiply<T, BLOCK, LANE_UNITS>(sums, quad, shared, origin);
                }
            }
            const bool finished = pass.last >= end;
            add_and_keep<T, BLOCK, LANE_UNITS>(sums, sums_of_block, group, pass.first > begin, !finished || problem.splits > 1);
            if (finished && set + 1 == problem.sets && problem.dependent_launch == streams::LATE) pdl_launch_dependents();
            if (finished && problem.splits == 1 && own) write_group<T, BLOCK, LANE_UNITS>(problem.outputs, position, first_row, sums);
        }
    } while (next < end);
    if (problem.splits == 1) return;
    __syncwarp();
    cluster_sync();
    add_up_and_write<T, BLOCK>(problem.outputs, sums_of_block, first_group, of_block, first_row, rank, problem.splits);
    __syncwarp();
    cluster_sync();  // no CTA may exit while others read its shared memory
}

// Same field order as in cuda/thread_per_row.py.
struct Arguments {
    const void *x, *values, *indices, *pointers, *order, *bias;
    void* y;
    long long row_stride, input_stride;  // strides in elements
    int vectors;
    int type, bias_type;  // 1 float, 2 half, 3 bfloat16; bias_type 0: none
    int m, k, groups, block, quads, k_block_count;
    // lane_units: 1, or 2 for single weights
    int sets, warps, splits, k_blocks, lane_units, shared_bytes, dependent_launch;
};

// rows: rows of X per CTA; together: groups that a warp multiplies by at once.
template <typename Kernel>
cudaError_t launch(Kernel kernel, const Problem& problem, int rows, int together, const Arguments& given, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    if (given.splits > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(given.splits), 1, 1};
    }
    if (given.dependent_launch != streams::OFF && has_pdl()) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    const int of_block = together * given.warps * given.sets;
    config.gridDim = dim3((given.groups + of_block - 1) / of_block * given.splits, (given.m + rows - 1) / rows);
    config.blockDim = dim3(LANES * given.warps);
    config.dynamicSmemBytes = given.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    if (given.warps > MOST_WARPS || given.splits < 1 || given.splits > MOST_SPLITS || given.sets < 1 || given.k_blocks < 1 || config.gridDim.y > 65535)
        return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, given.shared_bytes);
    return error == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, problem) : error;
}

template <typename Kernels, typename T>
cudaError_t launch_block(const Problem& problem, const Arguments& given, cudaStream_t stream) {
    if (given.block == 1 && given.lane_units == 2)
        return launch(Kernels::template kernel<T, 1, 2>(), problem, ROWS<T>, TOGETHER<2>, given, stream);
    if (given.lane_units != 1) return cudaErrorInvalidValue;
    if (given.block == 1) return launch(Kernels::template kernel<T, 1, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
    if constexpr (Kernels::BLOCKS) {
        if (given.block == 2) return launch(Kernels::template kernel<T, 2, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
        if (given.block == 4) return launch(Kernels::template kernel<T, 4, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
    }
    return cudaErrorInvalidValue;
}

// Kernels: kernel<T, BLOCK, LANE_UNITS>() returns a __global__ function; BLOCKS: whether blocks of 2 and 4 exist too.
template <typename Kernels>
cudaError_t launch_any(const Arguments& given, void* stream) {
    const Problem problem{{given.x, given.row_stride, given.input_stride, given.m, given.k, given.vectors},
                          {given.values, static_cast<const uint16_t*>(given.indices), static_cast<const int*>(given.pointers), given.quads},
                          {given.y, given.bias, given.bias_type, static_cast<const int*>(given.order), given.m, given.groups},
                          given.k_block_count,
                          given.sets,
                          given.splits,
                          given.k_blocks,
                          given.dependent_launch};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (given.type) {
        case 1: return launch_block<Kernels, float>(problem, given, queue);
        case 2: return launch_block<Kernels, __half>(problem, given, queue);
        case 3: return launch_block<Kernels, __nv_bfloat16>(problem, given, queue);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace thread_per_row
