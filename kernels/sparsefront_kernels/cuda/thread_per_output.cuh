// Y = X · W^T + bias for few rows of X and a weight with equally many kept inputs per group, for every output.
//
// A thread owns one output; a warp owns 32 of them (a row tile, `strip` in the code) and streams their weights from
// global memory in chunks. The inputs that they index lie in shared memory. All lanes work on the same group of inputs
// at the same time, so their reads are close together: mostly in different banks, or broadcasts of the same word. The
// warps of a CTA are divided over row tiles and over K (split-K), and the CTAs of a cluster split K further. Sums are
// added in a fixed order, so repeated runs are bit-identical.
#pragma once

#include <type_traits>

#include "hopper.cuh"
#include "numbers.cuh"
#include "streams.cuh"

namespace thread_per_output {

// Operands of kernels with one thread per output: chunks of 32 kept weights, and rows of X in shared memory.
// A chunk: 32 kept weights of each of 32 outputs, one output per lane, with bit-packed input indices.
constexpr int CHUNK = 32, LANES = 32;

// BITS: width of an index. BLOCK: neighboring inputs that share an index; a lane's chunk has 32 / BLOCK indices.
template <typename T, int BITS, int BLOCK>
struct Chunk {
    static constexpr int VECTORS = CHUNK * sizeof(T) / 16;  // 16-byte vectors per lane
    static constexpr int WORDS = CHUNK / BLOCK * BITS / 32;
    static constexpr int VALUES = CHUNK * LANES;     // elements per chunk, over all lanes
    static constexpr int INDICES = WORDS * LANES;

    uint32_t values[4 * VECTORS];
    uint32_t indices[WORDS];

    // Loads this lane's part of a chunk. Values are stored as [vector][lane][16 bytes]; index words as [lane][4 words],
    // repeated, then [lane][remaining words]. Either way the loads of a warp are coalesced.
    __device__ __forceinline__ void load(const T* chunk, const uint32_t* words, int lane) {
        const char* source = reinterpret_cast<const char*>(chunk) + lane * 16;
#pragma unroll
        for (int vector = 0; vector < VECTORS; ++vector)
            streams::load_words(reinterpret_cast<uint32_t(&)[4]>(values[4 * vector]), source + vector * LANES * 16);
#pragma unroll
        for (int word = 0; word < WORDS; word += 4) {
            constexpr int REST = WORDS % 4;
            if constexpr (WORDS >= 4) {
                if (word + 4 <= WORDS)
                    streams::load_words(reinterpret_cast<uint32_t(&)[4]>(indices[word]), words + word * LANES + lane * 4);
            }
            if constexpr (REST > 0) {
                if (word + 4 > WORDS)
                    streams::load_words(reinterpret_cast<uint32_t(&)[REST]>(indices[word]), words + word * LANES + lane * REST);
            }
        }
    }

    // Index of value j, shifted left by SHIFT. j must be a compile-time constant after unrolling.
    template <int SHIFT>
    __device__ __forceinline__ uint32_t index(int j) const {
        const int bit = j / BLOCK * BITS, word = bit / 32, at = bit % 32;
        const uint32_t both = at + BITS > 32 ? __funnelshift_r(indices[word], indices[word + 1], at) : indices[word] >> at;
        if (at + BITS > 32) return both << SHIFT & ((1u << BITS) - 1) << SHIFT;
        return (at >= SHIFT ? indices[word] >> (at - SHIFT) : indices[word] << (SHIFT - at)) & ((1u << BITS) - 1) << SHIFT;
    }
};

// A slot of shared memory holds one input's values of all ROWS rows of X, side by side.
template <int V>
constexpr int LOG2 = V == 1 ? 0 : 1 + LOG2<V / 2>;
template <>
inline constexpr int LOG2<1> = 0;

// ROWS: rows of X per slot. A single row is stored as float, so that 32 neighboring inputs lie in 32 different banks.
template <typename T, int ROWS>
struct Slot {
    using Stored = std::conditional_t<ROWS == 1, float, T>;
    static constexpr int BYTES = ROWS * sizeof(Stored), SHIFT = LOG2<BYTES>, WORDS = BYTES / 4;

    // sums[r] += weight * slot[r] for each row r.
    static __device__ __forceinline__ void multiply(float (&sums)[ROWS], float weight, const uint8_t* slot) {
        uint32_t words[WORDS];
        if constexpr (WORDS >= 4) {
#pragma unroll
            for (int word = 0; word < WORDS; word += 4)
                *reinterpret_cast<uint4*>(words + word) = *reinterpret_cast<const uint4*>(slot + 4 * word);
        } else if constexpr (WORDS == 2) {
            *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(slot);
        } else {
            words[0] = *reinterpret_cast<const uint32_t*>(slot);
        }
#pragma unroll
        for (int row = 0; row < ROWS; ++row) sums[row] = fmaf(weight, numbers::in_words<Stored>(words, row), sums[row]);
    }
};

template <int WORDS>
__device__ __forceinline__ void store_slot(void* slot, const uint32_t* words) {
    if constexpr (WORDS >= 4) {
#pragma unroll
        for (int word = 0; word < WORDS; word += 4)
            static_cast<uint4*>(slot)[word / 4] = make_uint4(words[word], words[word + 1], words[word + 2], words[word + 3]);
    } else if constexpr (WORDS == 2) {
        *static_cast<uint2*>(slot) = make_uint2(words[0], words[1]);
    } else {
        *static_cast<uint32_t*>(slot) = words[0];
    }
}

// X in the caller's layout.
struct Inputs {
    const void* x;
    long long row_stride, input_stride;  // strides in elements
    const int* order;                    // input i is X's input order[i]; null: identity
    int m, k;
    int vectors;                         // whether rows are contiguous along K, in aligned 16-byte vectors
};

// Stages inputs [first, first + count) of rows [first_row, first_row + ROWS) into slots; zeros beyond m and k.
template <typename T, int ROWS>
__device__ __forceinline__ void stage(const Inputs& inputs, int first_row, int first, int count, uint8_t* slots) {
    using Stored = typename Slot<T, ROWS>::Stored;
    const T* x = static_cast<const T*>(inputs.x) + first_row * inputs.row_stride;
    Stored* target = reinterpret_cast<Stored*>(slots);
    constexpr int VECTOR = 16 / sizeof(T);
    int staged = 0;
    if constexpr (ROWS == 1) {
        if (inputs.vectors) {
            staged = max(0, min(count, inputs.k - first)) / VECTOR * VECTOR;
#pragma unroll 4
            for (int at = threadIdx.x * VECTOR; at < staged; at += blockDim.x * VECTOR) {
                uint32_t words[4];
                *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(x + first + at);
#pragma unroll
                for (int i = 0; i < VECTOR; i += 4)
                    *reinterpret_cast<float4*>(target + at + i) =
                        make_float4(numbers::in_words<T>(words, i), numbers::in_words<T>(words, i + 1), numbers::in_words<T>(words, i + 2),
                                    numbers::in_words<T>(words, i + 3));
            }
        }
    }
#pragma unroll 2
    for (int at = staged + threadIdx.x; at < count; at += blockDim.x) {
        const int input = first + at;
        alignas(16) Stored rows[ROWS];
        if (input < inputs.k) {
            const T* source = x + (inputs.order == nullptr ? input : inputs.order[input]) * inputs.input_stride;
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const T v = first_row + row < inputs.m ? source[row * inputs.row_stride] : numbers::rounded<T>(0.0f);
                if constexpr (ROWS == 1) rows[row] = numbers::widened(v);
                else rows[row] = v;
            }
        } else {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) rows[row] = numbers::rounded<Stored>(0.0f);
        }
        store_slot<Slot<T, ROWS>::WORDS>(target + at * ROWS, reinterpret_cast<const uint32_t*>(rows));
    }
}

constexpr int MOST_THREADS = 256;
constexpr int ONE_GROUP = -1;  // one group spans all inputs

struct Problem {
    Inputs inputs;
    const void* values;      // [strips, chunks, 32 * 32]
    const uint32_t* indices;  // [strips, chunks, words of 32 lanes]
    const void* bias;
    int bias_type;
    void* y;                 // [m, n], contiguous
    int n;
    int kept, group_size;    // every output keeps `kept` weights in each group of `group_size` inputs
    int strips, chunks;    // row tiles of 32 outputs; chunks per row tile
    int block_strips;        // row tiles per CTA
    int splits;              // CTAs per cluster, split along K
    int segment;             // chunks whose inputs fit into shared memory at once
    int dependent_launch;
    int stages;              // chunks in flight per warp, for kernels that stage weights in shared memory
};

// Lowest input that chunk `at` may index, rounded down to a multiple of 8 (so that 16-byte vectors are aligned).
__device__ __forceinline__ int first_input(const Problem& problem, int at) {
    return at * CHUNK / problem.kept * problem.group_size / 8 * 8;
}

// KEPT: weights kept per group if that divides a chunk; 0: any number, read from the problem; or ONE_GROUP.
template <typename T, int BITS, int BLOCK, int KEPT, int ROWS>
__device__ __forceinline__ void multiply(float (&sums)[ROWS], const Chunk<T, BITS, BLOCK>& chunk, const Problem& problem, int at,
                                         const uint8_t* slots, int origin) {
    using Slots = Slot<T, ROWS>;
    const int kept = KEPT > 0 ? KEPT : problem.kept;
    const int group = KEPT == ONE_GROUP ? 0 : at * CHUNK / kept, step = problem.group_size * Slots::BYTES;
    const uint8_t* base = slots + (group * problem.group_size - origin) * Slots::BYTES;
    uint32_t begins = 0;  // bit j: value j is the first of its group
    if constexpr (KEPT == 0) {
        for (int j = (group + 1) * kept - at * CHUNK; j < CHUNK; j += kept) begins |= 1u << j;
    }
#pragma unroll
    for (int j = 0; j < CHUNK; ++j) {
        if (KEPT > 0 ? j > 0 && j % (KEPT > 0 ? KEPT : 1) == 0 : (begins >> j & 1) != 0) base += step;
        const uint32_t index = chunk.template index<Slots::SHIFT + LOG2<BLOCK>>(j);
        Slots::multiply(sums, numbers::in_words<T>(chunk.values, j), base + index + j % BLOCK * Slots::BYTES);
    }
}

template <typename T>
__device__ __forceinline__ void write(const Problem& problem, int row, int output, float sum) {
    if (row >= problem.inputs.m || output >= problem.n) return;
    sum += numbers::of_type(problem.bias, problem.bias_type, output);
    static_cast<T*>(problem.y)[static_cast<long long>(row) * problem.n + output] = numbers::rounded<T>(sum);
}

// sum += v, element by element.
__device__ __forceinline__ void add(float4& sum, const float4& v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// Adds up the sums of all warps, [share of K][row tile][row][lane] in shared memory, and stores them to Y, four at a
// time. Loads from the other CTAs of the cluster are issued together, since their latency exceeds all of the arithmetic
// here.
template <typename T, int ROWS>
__device__ __forceinline__ void reduce_and_write(const Problem& problem, float* sums, int first_output, int first_row, int rank) {
    constexpr int QUADS = LANES / 4, MOST_SPLITS = 8;
    float4* const quads = reinterpret_cast<float4*>(sums);
    const int count = problem.block_strips * ROWS * QUADS, shares = blockDim.x / LANES / problem.block_strips;
    const auto write_quad = [&](int quad, const float4& sum) {
        const int row = first_row + quad / QUADS % ROWS, output = first_output + quad / (QUADS * ROWS) * LANES + quad % QUADS * 4;
        write<T>(problem, row, output, sum.x);
        write<T>(problem, row, output + 1, sum.y);
        write<T>(problem, row, output + 2, sum.z);
        write<T>(problem, row, output + 3, sum.w);
    };
    for (int quad = threadIdx.x; quad < count; quad += blockDim.x) {
        float4 sum = quads[quad];
        for (int share = 1; share < shares; ++share) add(sum, quads[share * count + quad]);
        if (problem.splits == 1) write_quad(quad, sum);
        else quads[quad] = sum;
    }
    if (problem.splits == 1) return;
    cluster_sync();
    const int last = count * (rank + 1) / problem.splits;
    for (int quad = count * rank / problem.splits + threadIdx.x; quad < last; quad += blockDim.x) {
        float4 parts[MOST_SPLITS];
#pragma unroll
        for (int block = 0; block < MOST_SPLITS; ++block) {
            if (block < problem.splits) parts[block] = load_from_cluster(shared_address(quads + quad), block);
        }
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int block = 0; block < MOST_SPLITS; ++block) {
            if (block < problem.splits) add(sum, parts[block]);
        }
        write_quad(quad, sum);
    }
    cluster_sync();  // no CTA may exit while others read its shared memory
}

// The part of the weight that a warp streams: chunks first + of_strip, first + of_strip + (warps per row tile), … below
// last.
template <typename T, typename Part>
struct Share {
    // CTA's rank in the cluster; CTA's first row tile; this warp's row tile; this warp's index among those of its row
    // tile
    int rank, first_strip, strip, of_strip;
    int first, last;                         // chunk range of the CTA
    const T* values;                         // of the warp's row tile
    const uint32_t* indices;

    __device__ __forceinline__ Share(const Problem& problem, int warp) {
        rank = blockIdx.x % problem.splits, first_strip = blockIdx.x / problem.splits * problem.block_strips;
        strip = first_strip + warp % problem.block_strips, of_strip = warp / problem.block_strips;
        first = static_cast<int>(static_cast<long long>(problem.chunks) * rank / problem.splits);
        last = static_cast<int>(static_cast<long long>(problem.chunks) * (rank + 1) / problem.splits);
        const long long before = static_cast<long long>(strip) * problem.chunks;
        values = static_cast<const T*>(problem.values) + before * Part::VALUES;
        indices = problem.indices + before * Part::INDICES;
    }

    // Runs before the kernel reads anything that a preceding kernel may have written. Prefetches `count` chunks from
    // `from` on into L2, then waits for the preceding kernel (PDL).
    __device__ __forceinline__ void begin(const Problem& problem, int lane, int from, int count) const {
        if (problem.dependent_launch == streams::OFF) return;
        if (problem.dependent_launch == streams::EARLY) pdl_launch_dependents();
        if (lane == 0 && strip < problem.strips && count > 0) {
            streams::prefetch(values + from * Part::VALUES, count * Part::VALUES * static_cast<int>(sizeof(T)));
            streams::prefetch(indices + from * Part::INDICES, count * Part::INDICES * 4);
        }
        pdl_wait();
    }

    __device__ __forceinline__ void load(Part& chunk, int at, int lane) const {
        chunk.load(values + at * Part::VALUES, indices + at * Part::INDICES, lane);
    }
};

template <typename T, int BITS, int BLOCK, int KEPT, int ROWS>
__device__ __forceinline__ void product(const Problem& problem) {
    using Part = Chunk<T, BITS, BLOCK>;
    extern __shared__ __align__(16) uint8_t shared[];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, shares = blockDim.x / LANES / problem.block_strips;
    const int first_row = blockIdx.y * ROWS;
    const Share<T, Part> share(problem, warp);
    constexpr int MOST_PREFETCHED = 8;  // most chunks that a warp prefetches
    const int prefetched = share.first + (share.last - share.first) * share.of_strip / shares;
    const int beyond = share.first + (share.last - share.first) * (share.of_strip + 1) / shares;
    share.begin(problem, lane, prefetched, min(MOST_PREFETCHED, beyond - prefetched));

    float sums[ROWS] = {};
    for (int segment = share.first; segment < share.last; segment += problem.segment) {
        const int end = min(segment + problem.segment, share.last), own_end = share.strip < problem.strips ? end : segment;
        const int origin = first_input(problem, segment);
        const int beyond = (end * CHUNK + problem.kept - 1) / problem.kept * problem.group_size;
        int at = segment + share.of_strip;
        Part current, next;
        if (at < own_end) share.load(current, at, lane);  // overlaps with staging X
        if (segment > share.first) __syncthreads();
        stage<T, ROWS>(problem.inputs, first_row, origin, beyond - origin, shared);
        __syncthreads();
        for (; at < own_end; at += shares) {
            if (at + shares < own_end) share.load(next, at + shares, lane);
            multiply<T, BITS, BLOCK, KEPT>(sums, current, problem, at, shared, origin);
            current = next;
        }
    }
    if (problem.dependent_launch == streams::LATE) pdl_launch_dependents();
    __syncthreads();
    float* target = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) target[(warp * ROWS + row) * LANES + lane] = sums[row];
    __syncthreads();
    reduce_and_write<T, ROWS>(problem, target, share.first_strip * LANES, first_row, share.rank);
}

template <typename Kernel>
cudaError_t launch(Kernel kernel, const Problem& problem, int rows, int shared_bytes, int shares, cudaStream_t stream,
                   unsigned most_threads = MOST_THREADS) {
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    if (problem.splits > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(problem.splits), 1, 1};
    }
    if (problem.dependent_launch != streams::OFF && has_pdl()) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    const int strip_blocks = (problem.strips + problem.block_strips - 1) / problem.block_strips;
    config.gridDim = dim3(strip_blocks * problem.splits, (problem.inputs.m + rows - 1) / rows);
    config.blockDim = dim3(LANES * problem.block_strips * shares);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    if (config.blockDim.x > most_threads || problem.splits > 8) return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    return error == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, problem) : error;
}

// Same field order as in cuda/thread_per_output.py.
struct Arguments {
    const void *x, *order, *values, *indices, *bias;
    void* y;
    long long row_stride, input_stride;  // strides in elements
    int vectors;
    int type, bias_type;  // 1 float, 2 half, 3 bfloat16; bias_type 0: none
    int m, n, k, kept, group_size, bits, block, strips, chunks;
    int block_strips, shares, splits, rows, segment, shared_bytes, dependent_launch, stages;
};

template <typename Kernels, typename T>
cudaError_t launch_rows(const Problem& problem, const Arguments& given, cudaStream_t stream) {
    switch (given.rows) {
        case 1: return launch(Kernels::template kernel<T, 1>(given), problem, 1, given.shared_bytes, given.shares, stream);
        case 2: return launch(Kernels::template kernel<T, 2>(given), problem, 2, given.shared_bytes, given.shares, stream);
        case 4: return launch(Kernels::template kernel<T, 4>(given), problem, 4, given.shared_bytes, given.shares, stream);
        case 8: return launch(Kernels::template kernel<T, 8>(given), problem, 8, given.shared_bytes, given.shares, stream);
        default: return cudaErrorInvalidValue;
    }
}

inline Problem problem_of(const Arguments& given) {
    return {{given.x, given.row_stride, given.input_stride, static_cast<const int*>(given.order), given.m, given.k, given.vectors},
            given.values,
            static_cast<const uint32_t*>(given.indices),
            given.bias,
            given.bias_type,
            given.y,
            given.n,
            given.kept,
            given.group_size,
            given.strips,
            given.chunks,
            given.block_strips,
            given.splits,
            given.segment,
            given.dependent_launch,
            given.stages};
}

// Kernels: kernel<T, ROWS>(arguments) returns a __global__ function.
template <typename Kernels>
cudaError_t launch_any(const Arguments& given, void* stream) {
    const Problem problem = problem_of(given);
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (given.type) {
        case 1: return launch_rows<Kernels, float>(problem, given, queue);
        case 2: return launch_rows<Kernels, __half>(problem, given, queue);
        case 3: return launch_rows<Kernels, __nv_bfloat16>(problem, given, queue);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace thread_per_output
