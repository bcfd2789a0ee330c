// Elements of X in registers and their products with a chunk of the weight, for the kernels for few rows of X.
#pragma once

#include "../../cuda/hopper.cuh"
#include "../../cuda/numbers.cuh"

namespace {

// Parameters of the kernels for few rows of X, which part of the work a block owns, and how the kernels begin.
constexpr int CHUNK = 16;            // kept inputs per chunk, those of one tensor-core product
constexpr int LIST_BYTES = 2 * CHUNK;
template <typename T>
constexpr int FRAGMENT_BYTES = 256 * sizeof(T);  // 16 inputs x 16 outputs
constexpr unsigned NO_INPUT = 0xFFFF;
constexpr int MOST_WARPS = 8;
constexpr int GATHERERS = 4;         // warps that gather X into shared memory
constexpr int MOST_STAGES = 8;
constexpr int MOST_SPLITS = 8;
constexpr int MOST_WIDTH = 128;
constexpr int MOST_X_BYTES = 49152;  // size of an X that a block copies whole
constexpr int FIXED_BYTES = 2560;  // most shared memory of fixed size per block

// Programmatic dependent launch: how a grid overlaps with the grids before and after it in the stream. The weight is read before
// the previous ones have ended: a launch is PDL_OFF if one of them may have written it.
enum Pdl {
    PDL_OFF = 0,      // starts when the previous grid has ended
    PDL_EARLY = 1,      // is launched while the previous one runs, fills its rings, and waits for its end before it reads X
    PDL_PREFETCH = 2,   // and meanwhile prefetches into L2 the rest of its weight
    PDL_PREFETCH_LATE = 3,  // and lets the next grid start only after it has requested all of its weight
};

struct Problem {
    const void* x;                 // element (row, input) at row * x_row_stride + input * x_input_stride
    unsigned x_input_stride;       // bytes
    long long x_row_stride;        // elements
    long long x_bytes;             // of X, to prefetch into L2; 0 if X is spread too widely
    const uint8_t* lists;          // chunk after chunk: 16 inputs, lane q of a quad: four
    const uint8_t* panels;         // chunk after chunk: fragments
    long long chunks;              // in all row tiles
    const int2* row_tiles;            // first chunk, number of chunks
    int chunks_of_each;            // if all row tiles have equally many, one row tile after another; otherwise -1
    const int* outputs;            // [row_tiles, width]: output, or -1; null if outputs are in order
    int width;                     // outputs per row tile
    int first_pruned, end_pruned;  // range in `outputs` of those that keep no input, shared by all blocks
    int n, m;
    unsigned m_inverse;            // 2^19 / m, rounded up: divides numbers below 8192 exactly
    const void* bias;
    int bias_type;
    const void* residual;
    long long residual_row_stride, residual_output_stride;
    int activation;
    void* y;
    long long y_row_stride, y_output_stride;
    int splits;                    // blocks per cluster, which share the chunks of a row tile
    int stages;                    // stages of a warp's ring
    int region;                    // bytes of shared memory for a warp's ring, or for the block's
    int stage_chunks;              // chunks per stage that the warps of a block share
    int x_offset;                  // offset of all of X in shared memory
    int x_copy, x_copy_bytes;      // runs of X copied there, and the bytes of each; 0 if X is not copied
    unsigned x_pitch;              // bytes between rows of X there
    int pdl;
    int prefetch_bytes;            // most bytes that a block prefetches into L2
};

// X is small, but all blocks wait for it: its loads must not queue behind those of the weight.
__device__ __forceinline__ void prefetch_x(const void* x, long long bytes) {
    const long long at = 128ll * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
    if (at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(x) + at) : "memory");
}

// Prefetches part `index` of `count` of an array into L2, at most `most` bytes.
__device__ __forceinline__ void prefetch_part(const uint8_t* all, long long bytes, int index, int count, long long most) {
    const long long part = (bytes / count + 15) / 16 * 16, at = part * index;
    const long long size = min(min(most, part), bytes - at) / 16 * 16;
    if (size > 0) prefetch_bulk(all + at, static_cast<uint32_t>(size));
}

// A block's own chunks of its row tile.
template <typename T>
struct Share {
    const uint8_t *lists, *panels;  // those of the block's first chunk
    int count;                      // number of the block's chunks
    int panel_bytes;                // per chunk

    // range: the row tile's first chunk and number of chunks.
    __device__ __forceinline__ Share(const Problem& problem, int2 range, int rank) {
        const int begin = range.y * rank / problem.splits;
        count = range.y * (rank + 1) / problem.splits - begin;
        panel_bytes = problem.width / 16 * FRAGMENT_BYTES<T>;
        lists = problem.lists + static_cast<long long>(range.x + begin) * LIST_BYTES;
        panels = problem.panels + static_cast<long long>(range.x + begin) * panel_bytes;
    }

    // Loads all lists of the block, before anything else, since X is gathered by them.
    __device__ __forceinline__ void load_lists(uint32_t target, uint32_t barrier) const {
        barrier_arrive_expect(barrier, count * LIST_BYTES);
        copy_bulk(target, lists, count * LIST_BYTES, barrier);
        barrier_arrive_issued(barrier);
    }
};

// After the reads that may happen early: barriers are initialized, and the first loads of the weight are issued.
__device__ __forceinline__ void wait_for_grids_before(const Problem& problem) {
    if (problem.pdl == PDL_EARLY || problem.pdl == PDL_PREFETCH) pdl_launch_dependents();
    __syncthreads();
    if (problem.pdl != PDL_OFF) pdl_wait();
}

template <typename T>
__device__ __forceinline__ T rounded(float v) {
    if constexpr (__is_same(T, float)) {
        return v;
    } else if constexpr (__is_same(T, __half)) {
        return __float2half_rn(v);
    } else {
        return __float2bfloat16_rn(v);
    }
}

__device__ __forceinline__ float widened(float v) { return v; }
__device__ __forceinline__ float widened(__half v) { return __half2float(v); }
__device__ __forceinline__ float widened(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    if constexpr (__is_same(T, __half)) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    }
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ void multiply_add_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t to_tf32(float v) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
    return rounded;
}

// A float as the sum of two TF32 numbers, with an error of at most 2^-22.
struct Parts {
    uint32_t large, small;

    __device__ __forceinline__ Parts() {}
    __device__ __forceinline__ explicit Parts(uint32_t bits) {
        const float v = __uint_as_float(bits);
        large = to_tf32(v);
        const float rest = v - __uint_as_float(large);
        small = rest == rest ? to_tf32(rest) : 0;  // infinity minus infinity is NaN: the large part holds all
    }
};

// One input's elements for the COLUMN_BLOCKS rows of X that a lane holds.
template <typename T, int COLUMN_BLOCKS>
struct Elements {
    static constexpr int BYTES = COLUMN_BLOCKS * sizeof(T), WORDS = (BYTES + 3) / 4;
    uint32_t word[WORDS];

    // Loads from shared memory.
    __device__ __forceinline__ void load(uint32_t from, bool wanted) {
        static_assert(WORDS == 1);
        word[0] = 0;
        if (!wanted) return;
        if constexpr (BYTES == 2) {
            uint16_t v;
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
            word[0] = v;
        } else {
            word[0] = load_word(from);
        }
    }

    // Not through the read-only cache: another grid may have written X while this one was already launched.
    __device__ __forceinline__ void load(const void* from, bool wanted) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) word[i] = 0;
        if (!wanted) return;
        if constexpr (BYTES == 2) {
            word[0] = *static_cast<const volatile uint16_t*>(from);
        } else if constexpr (BYTES == 4) {
            asm volatile("ld.global.u32 %0, [%1];" : "=r"(word[0]) : "l"(from) : "memory");
        } else if constexpr (BYTES == 8) {
            asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(from) : "memory");
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4)
                asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(word[i]), "=r"(word[i + 1]), "=r"(word[i + 2]), "=r"(word[i + 3])
                             : "l"(static_cast<const uint32_t*>(from) + i)
                             : "memory");
        }
    }
};

// The 16-bit elements of two inputs for row block `block`, side by side.
template <typename Element>
__device__ __forceinline__ uint32_t paired(const Element& low, const Element& high, int block) {
    return __byte_perm(low.word[block / 2], high.word[block / 2], block % 2 ? 0x7632 : 0x5410);
}

// The gathered elements of X for the chunks of one slot: four inputs of each chunk per lane.
template <typename T, int COLUMN_BLOCKS, int UNIT>
struct Gathered {
    Elements<T, COLUMN_BLOCKS> x[UNIT][4];

    // list_of: chunk → the lane's four inputs; at: input → address of the lane's elements of it.
    template <typename ListOf, typename At>
    __device__ __forceinline__ void load(bool active, int chunks, const ListOf& list_of, const At& at) {
#pragma unroll
        for (int chunk = 0; chunk < UNIT; ++chunk) {
            if (chunk < chunks) {
                const uint2 four = list_of(chunk);
                const unsigned inputs[4] = {four.x & 0xFFFF, four.x >> 16, four.y & 0xFFFF, four.y >> 16};
#pragma unroll
                for (int i = 0; i < 4; ++i) x[chunk][i].load(at(inputs[i]), active && inputs[i] != NO_INPUT);
            }
        }
    }
};

// acc += the products of one chunk, whose fragments begin at `at` (the lane's own place); 16-bit elements.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_chunk(float (&acc)[FRAGMENTS][COLUMN_BLOCKS][4], const Elements<T, COLUMN_BLOCKS> (&x)[4], uint32_t at) {
    uint32_t b[COLUMN_BLOCKS][2];
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block) {
        b[block][0] = paired(x[0], x[1], block);
        b[block][1] = paired(x[2], x[3], block);
    }
#pragma unroll
    for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
        const uint4 a = load_shared_16(at + fragment * FRAGMENT_BYTES<T>);
#pragma unroll
        for (int block = 0; block < COLUMN_BLOCKS; ++block) multiply_add<T>(acc[fragment][block], a, b[block][0], b[block][1]);
    }
}

// The same for float, also on tensor cores: each operand is the sum of two TF32 numbers, and all products but that of the two small
// parts are added up. Each chunk has its own sums, since tensor cores truncate sums, and additions outside round them.
template <int FRAGMENTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_chunk(float (&acc)[FRAGMENTS][COLUMN_BLOCKS][4], const Elements<float, COLUMN_BLOCKS> (&x)[4], uint32_t at) {
    Parts b[COLUMN_BLOCKS][4];
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) b[block][i] = Parts(x[i].word[block]);
    }
#pragma unroll
    for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
        uint32_t large[2][4], small[2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 a = load_shared_16(at + fragment * FRAGMENT_BYTES<float> + half * 512);
            const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Parts parts(words[i]);
                large[half][i] = parts.large, small[half][i] = parts.small;
            }
        }
#pragma unroll
        for (int block = 0; block < COLUMN_BLOCKS; ++block) {
            float d[4] = {};
            const auto& v = b[block];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                multiply_add_tf32(d, small[half], v[2 * half].large, v[2 * half + 1].large);
                multiply_add_tf32(d, large[half], v[2 * half].small, v[2 * half + 1].small);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) multiply_add_tf32(d, large[half], v[2 * half].large, v[2 * half + 1].large);
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[fragment][block][i] += d[i];
        }
    }
}

// Adds up the sums of warps and blocks and writes Y, for the kernels for few rows of X.
__device__ __forceinline__ int output_at(const Problem& problem, int place) {
    return problem.outputs != nullptr ? problem.outputs[place] : place < problem.n ? place : -1;
}

// Operands of a block's epilogue, loaded early.
struct Targets {
    int output = -1;
    float bias = 0.0f;

    // outputs: number of the block's outputs, at most one per thread; `first`: place of the first one among the row tiles' outputs.
    __device__ __forceinline__ Targets(const Problem& problem, int first, int outputs) {
        if (threadIdx.x >= outputs) return;
        output = output_at(problem, first + threadIdx.x);
        if (output >= 0) bias = bias_at(problem.bias, problem.bias_type, output);
    }
};

__device__ __forceinline__ float load_float_from_cluster(uint32_t address) {
    float v;
    asm volatile(LOAD_FROM_CLUSTER ".f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

struct SharedTargets {
    int output[MOST_WIDTH];
    float bias[MOST_WIDTH];
};

// A warp's sums are stored in shared memory as [fragment][row block][4][33]: what lane l holds as its i-th is at [i][l].
constexpr int BLOCK_SUMS = 4 * 33;

template <int FRAGMENTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void store_sums(float* target, const float (&acc)[FRAGMENTS][COLUMN_BLOCKS][4], int lane) {
#pragma unroll
    for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
#pragma unroll
        for (int block = 0; block < COLUMN_BLOCKS; ++block) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                target[(fragment * COLUMN_BLOCKS + block) * BLOCK_SUMS + i * 33 + lane] = acc[fragment][block][i];
        }
    }
}

// One element of a block's part of Y. INTERLEAVED: order of the rows of X in a row block's columns.
template <int COLUMN_BLOCKS, bool INTERLEAVED>
struct Element {
    int output, row, at;  // output: index within the block; at: index of the sum

    // Consecutive indices are neighbors in Y. outputs: 2 to the power of output_bits.
    __device__ __forceinline__ Element(const Problem& problem, int output_bits, int index) {
        if (problem.y_row_stride == 1) {
            output = static_cast<unsigned>(index) * problem.m_inverse >> 19, row = index - output * problem.m;
        } else {
            row = index >> output_bits, output = index - (row << output_bits);
        }
        const int column = INTERLEAVED ? row / COLUMN_BLOCKS : row % 8, block = INTERLEAVED ? row % COLUMN_BLOCKS : row / 8;
        at = (output / 16 * COLUMN_BLOCKS + block) * BLOCK_SUMS + (output / 8 % 2 * 2 + column % 2) * 33 + output % 8 * 4 + column / 2;
    }
};

// A separate function, since the rest is faster if it is shorter.
__device__ __noinline__ float activated_apart(float v, int activation) { return activated(v, activation); }

// sum: includes the bias.
template <typename T>
__device__ __forceinline__ void write(const Problem& problem, int output, int row, float sum) {
    if (problem.activation != NONE) sum = activated_apart(sum, problem.activation);
    if (problem.residual != nullptr) {
        const long long from = row * problem.residual_row_stride + output * problem.residual_output_stride;
        sum += widened(static_cast<const T*>(problem.residual)[from]);
    }
    static_cast<T*>(problem.y)[row * problem.y_row_stride + output * problem.y_output_stride] = rounded<T>(sum);
}

template <typename T, typename Element>
__device__ __forceinline__ void write(const Problem& problem, const SharedTargets& targets, const Element& element, float sum) {
    const int output = targets.output[element.output];
    if (output >= 0) write<T>(problem, output, element.row, sum + targets.bias[element.output]);
}

// The first `threads` threads write this block's part of the outputs that keep no input, while X is being loaded.
template <typename T>
__device__ __noinline__ void write_pruned(const Problem& problem, int threads) {
    const int places = problem.end_pruned - problem.first_pruned;
    for (int index = blockIdx.x * threads + threadIdx.x; index < places * problem.m; index += gridDim.x * threads) {
        // consecutive indices are neighbors in Y
        const bool by_row = problem.y_row_stride == 1;
        const int place = by_row ? index / problem.m : index % places, row = by_row ? index % problem.m : index / places;
        const int output = output_at(problem, problem.first_pruned + place);
        if (output >= 0) write<T>(problem, output, row, bias_at(problem.bias, problem.bias_type, output));
    }
}

// In pairs; unused ones are zero.
__device__ __forceinline__ float sum_of(const float (&v)[8]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// For this thread's elements from `first` to `last`: load(place, v) for several at once, then
// use(element, sum).
template <int COLUMN_BLOCKS, bool INTERLEAVED, typename Load, typename Use>
__device__ __forceinline__ void for_elements(const Problem& problem, int output_bits, int first, int last, int threads, const Load& load,
                                             const Use& use) {
    constexpr int AT_ONCE = COLUMN_BLOCKS == 1 ? 1 : 4;
    for (int index = first + threadIdx.x; index < last; index += AT_ONCE * threads) {
        float v[AT_ONCE][8];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int here = index + i * threads;
            load(Element<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, here < last ? here : index).at, v[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int here = index + i * threads;
            if (here < last) use(Element<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, here), sum_of(v[i]));
        }
    }
}

// Adds up the sums of `warp_split_k` warps (8 at most), which begin `stride` floats apart in shared memory, and then of the
// cluster's blocks, and writes Y. outputs: those of the block. `threads` threads take part.
template <typename T, int COLUMN_BLOCKS, bool INTERLEAVED>
__device__ __forceinline__ void reduce_and_write(const Problem& problem, const SharedTargets& targets, float* sums, int stride,
                                                 int warp_split_k, int outputs, int threads, int rank) {
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    const int elements = outputs * problem.m, output_bits = 31 - __clz(outputs);
    const bool alone = problem.splits == 1;
    const auto of_k_slices = [&](int at, float(&v)[8]) {
#pragma unroll
        for (int k_slice = 0; k_slice < 8; ++k_slice) v[k_slice] = k_slice < warp_split_k ? sums[k_slice * stride + at] : 0.0f;
    };
    if (alone) {
        for_elements<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, 0, elements, threads, of_k_slices,
                                                 [&](const auto& element, float sum) { write<T>(problem, targets, element, sum); });
        return;
    }
    if (warp_split_k > 1) {
        for_elements<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, 0, elements, threads, of_k_slices,
                                                 [&](const auto& element, float sum) { sums[element.at] = sum; });
    }
    uint32_t theirs[8];
#pragma unroll
    for (int other = 0; other < 8; ++other) theirs[other] = address_in_cluster(shared_address(sums), min(other, problem.splits - 1));
    cluster_sync();
    const auto of_blocks = [&](int at, float(&v)[8]) {
#pragma unroll
        for (int other = 0; other < 8; ++other) v[other] = other < problem.splits ? load_float_from_cluster(theirs[other] + 4 * at) : 0.0f;
    };
    for_elements<COLUMN_BLOCKS, INTERLEAVED>(problem, output_bits, elements * rank / problem.splits, elements * (rank + 1) / problem.splits,
                                             threads, of_blocks,
                                             [&](const auto& element, float sum) { write<T>(problem, targets, element, sum); });
    cluster_sync();  // no block may end while another reads its memory
}

}  // namespace
