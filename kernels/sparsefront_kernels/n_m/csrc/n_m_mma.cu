// Y = X · W^T + bias for weights that keep 1 or 2 of every 4 inputs or 3 of every 32, and up to 64 rows of X, by tensor cores;
// half and bfloat16. Work is shared as in ../../cuda/thread_per_output.cuh; bulk copies load weights and X; see
// ../README.md.

#include "../../cuda/hopper.cuh"
#include "../../cuda/tensor_copy.cuh"
#include "../../cuda/thread_per_output.cuh"

namespace mma {

// Bulk copies through shared memory: chunks of the weight, a few in advance, and rows of X.
// A warp's chunks use `stages` slots in turn. The warp's first lane starts the next copy as soon as a slot has been read.
template <typename T, typename Part>
struct ChunkRing {
    static constexpr uint32_t VALUE_BYTES = Part::VALUES * sizeof(T), INDEX_BYTES = Part::INDICES * 4, BYTES = VALUE_BYTES + INDEX_BYTES;

    uint8_t* slots;
    uint32_t barriers;  // one per slot, for the arrival of its chunk
    int stages, slot = 0, phase = 0;
    int asked, beyond, step;  // next chunk to copy; end of the strip; distance between the warp's chunks

    // Called before the block's first barrier; `lane` 0 initializes the mbarriers.
    __device__ __forceinline__ ChunkRing(uint8_t* slots, uint32_t barriers, int stages, int lane)
        : slots(slots), barriers(barriers), stages(stages), asked(0), beyond(0), step(1) {
        if (lane == 0) {
            for (int i = 0; i < stages; ++i) barrier_init(barriers + 8 * i, 1);
        }
    }

    __device__ __forceinline__ void ask(const thread_per_output::Share<T, Part>& share, int into) {
        const uint32_t there = barriers + 8 * into, target = shared_address(slots) + into * BYTES;
        barrier_arrive_expect(there, BYTES);
        copy_bulk(target, share.values + asked * Part::VALUES, VALUE_BYTES, there);
        copy_bulk(target + VALUE_BYTES, share.indices + asked * Part::INDICES, INDEX_BYTES, there);
        barrier_arrive_issued(there);
    }

    // Starts copies of chunks first, first + step, … below `last`, one per slot.
    __device__ __forceinline__ void begin(const thread_per_output::Share<T, Part>& share, int first, int last, int chunks_apart, int lane) {
        asked = first, beyond = last, step = chunks_apart;
        for (int into = 0; into < stages && asked < beyond; ++into, asked += step) {
            if (lane == 0) ask(share, into);
        }
    }

    // Loads the next chunk into registers, and starts a copy of another one into its slot.
    __device__ __forceinline__ void take(const thread_per_output::Share<T, Part>& share, Part& chunk, int lane) {
        barrier_wait(barriers + 8 * slot, phase);
        chunk.read(slots + slot * BYTES, lane);
        __syncwarp();  // all lanes have read it
        if (asked < beyond) {
            if (lane == 0) ask(share, slot);
            asked += step;
        }
        if (++slot == stages) slot = 0, phase ^= 1;
    }
};

// Whether rows of X can be copied in bulk or as vectors: every chunk begins at a multiple of 16 bytes.
__device__ __forceinline__ bool in_vectors(const thread_per_output::Inputs& inputs) { return inputs.vectors && inputs.k % 8 == 0; }

constexpr int PIECES = 4;  // parts of the rows in shared memory along K, each with its own barrier

// Beginning of a piece of chunks [first, last).
__device__ __forceinline__ int piece_begin(int first, int last, int piece) { return first + (last - first) * piece / PIECES; }

// All threads copy the inputs of chunks [first, last) of X's rows, `pitch` bytes apart. The barriers from `there` on, which count
// one arrival and bytes in either order, complete a phase as pieces arrive. A warp issues its lanes' copies one after another, tens
// of cycles each, so all warps share them. Rows beyond those of X keep their content: their sums are not written.
template <typename T, int INPUTS>
__device__ __forceinline__ void bring_rows(const thread_per_output::Inputs& inputs, int first, int last, uint8_t* target, int pitch, uint32_t there) {
    const int warps = blockDim.x / thread_per_output::LANES, own = threadIdx.x / thread_per_output::LANES + threadIdx.x % thread_per_output::LANES * warps;
    const T* x = static_cast<const T*>(inputs.x);
    const auto begin_of = [&](int piece) { return min(piece_begin(first, last, piece) * INPUTS, inputs.k); };
    if (threadIdx.x == 0) {
        for (int piece = 0; piece < PIECES; ++piece)
            barrier_arrive_expect(there + 8 * piece, inputs.m * (begin_of(piece + 1) - begin_of(piece)) * sizeof(T));
    }
    __syncwarp();
    for (int at = own; at < PIECES * inputs.m; at += blockDim.x) {
        const int piece = at / inputs.m, row = (at + blockIdx.x) % inputs.m;  // blocks begin with different rows, which are in different parts of L2
        const int from = begin_of(piece), count = begin_of(piece + 1) - from;
        if (count > 0)
            copy_bulk(shared_address(target) + row * pitch + (from - first * INPUTS) * sizeof(T), x + row * inputs.row_stride + from,
                      count * sizeof(T), there + 8 * piece);
    }
#ifdef BEFORE_HOPPER
    __syncthreads();  // arrivals end the wait for copies that were started, not for bytes
    if (threadIdx.x < PIECES) barrier_arrive(there + 8 * threadIdx.x);
#endif
}

// All threads write zeros for inputs beyond K in the last of chunks [first, last): weights are zero there, but shared memory may hold
// NaN.
template <typename T, int INPUTS>
__device__ __forceinline__ void clear_beyond(const thread_per_output::Inputs& inputs, int rows, int first, int last, uint8_t* target, int pitch) {
    const int absent = last * INPUTS - inputs.k;
    for (int at = threadIdx.x; at < rows * absent; at += blockDim.x)
        *reinterpret_cast<T*>(target + at / absent * pitch + (inputs.k - first * INPUTS + at % absent) * sizeof(T)) = numbers::rounded<T>(0.0f);
}

// All threads load inputs [first, first + count) of `rows` rows, for X whose inputs are not contiguous; zeros beyond m and k.
template <typename T>
__device__ __forceinline__ void gather_rows(const thread_per_output::Inputs& inputs, int rows, int first, int count, uint8_t* target, int pitch) {
    const T* x = static_cast<const T*>(inputs.x);
#pragma unroll 4
    for (int at = threadIdx.x; at < rows * count; at += blockDim.x) {
        const int row = at / count, input = at % count;
        T v = numbers::rounded<T>(0.0f);
        if (row < inputs.m && first + input < inputs.k) {
            const int from = inputs.order == nullptr ? first + input : inputs.order[first + input];
            v = x[row * inputs.row_stride + from * inputs.input_stride];
        }
        *reinterpret_cast<T*>(target + row * pitch + input * sizeof(T)) = v;
    }
}

// 3 of every 32 inputs: no zero is multiplied, since the kept inputs of X are gathered as left operands of mma.m16n8k16.
//
// The 16 k of a product are one kept weight of two outputs in each of eight groups: ldmatrix reads eight rows of X for each, from the
// address that a lane gives. Inputs of eight neighboring groups are in eight columns of banks, so any kept inputs are read without
// conflicts. A right operand holds the weights of the two outputs in their columns, and zeros elsewhere.
template <typename T>
__device__ __forceinline__ void multiply_add(float* sums, const uint4& left, uint32_t right_low, uint32_t right_high) {
    if constexpr (__is_same(T, __half)) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right_low), "r"(right_high));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right_low), "r"(right_high));
    }
}

// A chunk is 256 inputs (eight groups) by 32 outputs (four tiles of eight). Slots of X: [chunk][eight rows][index in a group][group]
// [row].
struct ThreeOf32 {
    static constexpr int KEPT = 3, GROUP = 32, GROUPS = 8, TILES = 4, INPUTS = GROUP * GROUPS;
    static constexpr int INDEX_BITS = 5, OF_WORD = 6;                                    // indices per word
    static constexpr int SLOT_BYTES = 16, INDEX_BYTES = GROUPS * SLOT_BYTES, OCTET_BYTES = GROUP * INDEX_BYTES;
    static constexpr bool IN_SLOTS = true;

    // A lane holds, for each tile, the kept weights of output lane / 4 in groups 2 (lane % 4) and the next one, in a word; and the
    // indices of group lane % 8 of outputs lane / 16, 2 + lane / 16, …, six to a word.
    struct Chunk {
        static constexpr int VALUES = KEPT * GROUPS * thread_per_output::LANES, INDICES = 128;  // of all lanes together, in numbers and words

        uint32_t right[TILES * KEPT], indices[8];

        // Loads from a slot in shared memory: values as [vector][lane][16 bytes], then words as [vector][lane / 16][lane % 8][16 bytes].
        __device__ __forceinline__ void read(const uint8_t* slot, int lane) {
#pragma unroll
            for (int vector = 0; vector < TILES * KEPT / 4; ++vector)
                *reinterpret_cast<uint4*>(right + 4 * vector) = *reinterpret_cast<const uint4*>(slot + (vector * thread_per_output::LANES + lane) * 16);
#pragma unroll
            for (int vector = 0; vector < 2; ++vector)
                *reinterpret_cast<uint4*>(indices + 4 * vector) =
                    *reinterpret_cast<const uint4*>(slot + VALUES * 2 + (vector * 16 + lane / 16 * 8 + lane % 8) * 16);
        }
    };

    // A lane's sums: [tile][16 rows of X][4].
    template <int ROWS>
    static __device__ __forceinline__ int row(int i, int lane) {
        return i / 4 % (ROWS / 16) * 16 + i % 4 / 2 * 8 + lane / 4;
    }
    template <int ROWS>
    static __device__ __forceinline__ int output(int i, int lane) {
        return i / 4 / (ROWS / 16) * 8 + lane % 4 * 2 + i % 2;
    }

    // x: the chunk's slots in shared memory.
    template <typename T, int ROWS>
    static __device__ __forceinline__ void multiply(float (&sums)[ROWS], const Chunk& chunk, const uint8_t* x, int, int lane) {
        const uint32_t own = shared_address(x) + lane % 8 * SLOT_BYTES + lane / 8 % 2 * OCTET_BYTES;
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {  // pair of a tile's outputs
            const uint32_t even = lane / 4 == 2 * pair ? ~0u : 0, odd = lane / 4 == 2 * pair + 1 ? ~0u : 0;
#pragma unroll
            for (int kept = 0; kept < KEPT; ++kept) {
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    const int at = (tile * 4 + pair) * KEPT + kept, bit = at % OF_WORD * INDEX_BITS;
                    const uint32_t index = chunk.indices[at / OF_WORD] >> bit & (GROUP - 1), weights = chunk.right[tile * KEPT + kept];
#pragma unroll
                    for (int block = 0; block < ROWS / 16; ++block) {
                        const uint4 left = load_transposed_blocks(own + index * INDEX_BYTES + block * 2 * OCTET_BYTES);
                        multiply_add<T>(sums + (tile * (ROWS / 16) + block) * 4, left, weights & even, weights & odd);
                    }
                }
            }
        }
    }

    // All threads load the inputs of chunks [from, to) of ROWS rows into the slots of a segment that begins with chunk `first`, from
    // rows that are contiguous along K, in vectors of 16 bytes; zeros beyond m and k. A warp loads eight rows of a chunk at a time, a
    // lane eight inputs of each.
    template <typename T, int ROWS>
    static __device__ __forceinline__ void bring(const thread_per_output::Inputs& inputs, int first, int from, int to, uint8_t* target) {
        const int lane = threadIdx.x % thread_per_output::LANES, group = lane % 8, begin = lane / 8 * 8;
        const int warps = blockDim.x / thread_per_output::LANES, earlier = (from - first) * (ROWS / 8);  // the next warps continue after another piece
        for (int at = earlier + (threadIdx.x / thread_per_output::LANES + warps - earlier % warps) % warps; at < (to - first) * (ROWS / 8); at += warps) {
            const int input = (first + at / (ROWS / 8)) * INPUTS + group * GROUP + begin, first_row = at % (ROWS / 8) * 8;
            const T* x = static_cast<const T*>(inputs.x) + input;
            uint32_t words[8][4];  // two neighboring inputs each
#pragma unroll
            for (int row = 0; row < 8; ++row) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (first_row + row < inputs.m && input < inputs.k) v = *reinterpret_cast<const uint4*>(x + (first_row + row) * inputs.row_stride);
                *reinterpret_cast<uint4*>(words[row]) = v;
            }
            uint8_t* slot = target + at * OCTET_BYTES + begin * INDEX_BYTES + group * SLOT_BYTES;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                uint32_t rows[4];
#pragma unroll
                for (int two = 0; two < 4; ++two) rows[two] = __byte_perm(words[2 * two][i / 2], words[2 * two + 1][i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
                *reinterpret_cast<uint4*>(slot + i * INDEX_BYTES) = make_uint4(rows[0], rows[1], rows[2], rows[3]);
            }
        }
    }

    // Loads chunks [first, last), one number at a time, for X whose inputs are not contiguous.
    template <typename T, int ROWS>
    static __device__ __forceinline__ void bring_each(const thread_per_output::Inputs& inputs, int first, int last, uint8_t* target) {
        const T* x = static_cast<const T*>(inputs.x);
        const int count = (last - first) * INPUTS;
#pragma unroll 4
        for (int at = threadIdx.x; at < ROWS * count; at += blockDim.x) {
            const int row = at / count, of_these = at % count, input = first * INPUTS + of_these;
            T v = numbers::rounded<T>(0.0f);
            if (row < inputs.m && input < inputs.k)
                v = x[row * inputs.row_stride + (inputs.order == nullptr ? input : inputs.order[input]) * inputs.input_stride];
            uint8_t* octet = target + (of_these / INPUTS * (ROWS / 8) + row / 8) * OCTET_BYTES;
            *reinterpret_cast<T*>(octet + of_these % GROUP * INDEX_BYTES + of_these / GROUP % GROUPS * SLOT_BYTES + row % 8 * sizeof(T)) = v;
        }
    }
};

// 1 or 2 of every 4 inputs as left operands of sparse products (mma.sp.m16n8k32), and their products with rows of X in shared memory.
//
// A sparse left operand holds two of every four neighboring k, and a word of metadata says which. 2:4 weights are packed as these
// operands, so a lane only loads them. 1:4 needs a mask for each two weights; see OfFour<1>.
constexpr int PADDING = 16;  // bytes between rows of X, so that eight rows are in different banks

// SELECTOR: which lanes of each four provide the metadata, 0: the first two, 1: the others. A word holds the indices of 16 k, for row
// lane / 4 in its lower half and for row lane / 4 + 8 in the upper one, four bits for every four k.
template <typename T, int SELECTOR>
__device__ __forceinline__ void multiply_add_sparse(float* sums, const uint32_t (&left)[4], const uint32_t (&right)[4], uint32_t metadata) {
    if constexpr (__is_same(T, __half)) {
        asm volatile(
            "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, "
            "{%0,%1,%2,%3}, %12, %13;"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "r"(right[2]), "r"(right[3]), "r"(metadata),
              "n"(SELECTOR));
    } else {
        asm volatile(
            "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, "
            "{%0,%1,%2,%3}, %12, %13;"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "r"(right[2]), "r"(right[3]), "r"(metadata),
              "n"(SELECTOR));
    }
}

// A lane's part of a chunk: 32 kept weights, as [k-block][half of 16 outputs][the four words of a left operand], and two words of indices.
struct SparseChunk {
    static constexpr int VALUES = 1024, INDICES = 64;  // of all lanes together, in numbers and words

    uint32_t left[2][2][4], indices[2];

    // Loads from a slot in shared memory: values as [k-block][half][lane][16 bytes], then words as [lane][2].
    __device__ __forceinline__ void read(const uint8_t* slot, int lane) {
#pragma unroll
        for (int at = 0; at < 4; ++at)
            *reinterpret_cast<uint4*>(left[at / 2][at % 2]) = *reinterpret_cast<const uint4*>(slot + (at * thread_per_output::LANES + lane) * 16);
        *reinterpret_cast<uint2*>(indices) = *reinterpret_cast<const uint2*>(slot + VALUES * 2 + lane * 8);
    }
};

// How a weight of a pattern is multiplied: the part that both kinds of `OfFour` share. A chunk has 32 outputs, two halves of 16. A
// lane's sums: [half][eight rows of X][4].
struct OfFourSums {
    using Chunk = SparseChunk;
    static constexpr bool IN_SLOTS = false;  // rows of X keep their order in memory

    template <int ROWS>
    static __device__ __forceinline__ int row(int i, int lane) {
        return i / 4 % (ROWS / 8) * 8 + lane % 4 * 2 + i % 2;
    }
    template <int ROWS>
    static __device__ __forceinline__ int output(int i, int lane) {
        return i / 4 / (ROWS / 8) * 16 + i % 4 / 2 * 8 + lane / 4;
    }
    template <typename T, int ROWS>
    static __device__ __forceinline__ void multiply_both(float (&sums)[ROWS], int block, const uint32_t (&upper)[4], const uint32_t (&lower)[4],
                                                         const uint32_t (&right)[4], uint32_t metadata) {
        multiply_add_sparse<T, 0>(sums + block * 4, upper, right, metadata);
        multiply_add_sparse<T, 1>(sums + (ROWS / 8 + block) * 4, lower, right, metadata);
    }
};

template <int KEPT>
struct OfFour;

// A chunk is 64 inputs as packed: two products.
template <>
struct OfFour<2> : OfFourSums {
    static constexpr int INPUTS = 64;

    // x: the chunk's first input in the first row, in shared memory.
    template <typename T, int ROWS>
    static __device__ __forceinline__ void multiply(float (&sums)[ROWS], const SparseChunk& chunk, const uint8_t* x, int pitch, int lane) {
        const uint32_t own = shared_address(x) + lane % 8 * pitch + lane / 8 * 16;
#pragma unroll
        for (int k_block = 0; k_block < 2; ++k_block) {
#pragma unroll
            for (int block = 0; block < ROWS / 8; ++block) {
                const uint4 right = load_blocks(own + block * 8 * pitch + k_block * 64);
                multiply_both<T, ROWS>(sums, block, chunk.left[k_block][0], chunk.left[k_block][1], {right.x, right.y, right.z, right.w},
                                       chunk.indices[k_block]);
            }
        }
    }
};

// A chunk is 128 inputs: two k-blocks of 64 with two products each. The four k of a sparse group are two neighboring inputs of a
// group of four, a, and two of another one, b: the first two of both in one product, the last two in the other one. So a word with the
// weights of a and b holds the kept weights of either product after the other's are masked out, and both have the same metadata.
template <>
struct OfFour<1> : OfFourSums {
    static constexpr int INPUTS = 128;
    static constexpr uint32_t OF_SECOND_PAIR = 0x88888888;  // indices are p and 2 + p, where p is 0 or 1

    // Mask of ones where a weight of word `at` (0 … 15) is among the first two of its four inputs, which a bit of `bits` says.
    static __device__ __forceinline__ uint32_t among_first(uint32_t bits, int at) {
        uint32_t mask;  // each byte repeats the sign of another byte
        if (at % 2 == 0) asm("prmt.b32 %0, %1, %1, 0x9988;" : "=r"(mask) : "r"(bits << at / 2));
        else asm("prmt.b32 %0, %1, %1, 0xBBAA;" : "=r"(mask) : "r"(bits << at / 2));
        return mask;
    }

    template <typename T, int ROWS>
    static __device__ __forceinline__ void multiply(float (&sums)[ROWS], const SparseChunk& chunk, const uint8_t* x, int pitch, int lane) {
        const uint8_t* own = x + lane / 4 * pitch + lane % 4 * 32;  // 16 inputs of one row
#pragma unroll
        for (int k_block = 0; k_block < 2; ++k_block) {
            const uint32_t metadata = (chunk.indices[0] >> k_block & 0x55555555) | OF_SECOND_PAIR;
            uint32_t first[2][4], last[2][4];
#pragma unroll
            for (int at = 0; at < 8; ++at) {
                const uint32_t both = chunk.left[k_block][at / 4][at % 4], mask = among_first(chunk.indices[1], k_block * 8 + at);
                first[at / 4][at % 4] = both & mask;
                last[at / 4][at % 4] = both & ~mask;
            }
#pragma unroll
            for (int block = 0; block < ROWS / 8; ++block) {
                const uint4 low = *reinterpret_cast<const uint4*>(own + block * 8 * pitch + k_block * 128);
                const uint4 high = *reinterpret_cast<const uint4*>(own + block * 8 * pitch + k_block * 128 + 16);
                multiply_both<T, ROWS>(sums, block, first[0], first[1], {low.x, low.z, high.x, high.z}, metadata);
                multiply_both<T, ROWS>(sums, block, last[0], last[1], {low.y, low.w, high.y, high.w}, metadata);
            }
        }
    }
};

}  // namespace mma

namespace {

using thread_per_output::LANES;

template <int ROWS>
constexpr int MOST_THREADS = ROWS <= 16 ? 512 : 256;  // more sums need more registers

// Pattern: OfFour or ThreeOf32.
template <typename T, typename Pattern, int ROWS>
__global__ void __launch_bounds__(MOST_THREADS<ROWS>, 1) n_m_mma_kernel(const __grid_constant__ thread_per_output::Problem problem) {
    using Part = typename Pattern::Chunk;
    using Ring = mma::ChunkRing<T, Part>;
    constexpr int INPUTS = Pattern::INPUTS;  // per chunk
    extern __shared__ __align__(16) uint8_t shared[];  // slots of all warps; their barriers and those of X; rows of X, finally sums
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES, shares = warps / problem.block_strips;
    const int slots = warps * problem.stages;
    uint8_t* const barriers = shared + slots * Ring::BYTES;
    uint8_t* const rows = barriers + (slots + mma::PIECES + 1) / 2 * 16;
    const uint32_t rows_there = shared_address(barriers) + 8 * slots;
    Ring ring(shared + warp * problem.stages * Ring::BYTES, shared_address(barriers) + 8 * warp * problem.stages, problem.stages, lane);
    if (threadIdx.x == 0) {
        for (int piece = 0; piece < mma::PIECES; ++piece) barrier_init(rows_there + 8 * piece, Pattern::IN_SLOTS ? warps : 1);
    }
    fence_barrier_init();

    const thread_per_output::Share<T, Part> share(problem, warp);
    // a strip's first chunks, no more than arrive while the previous kernel ends, since all copies of X and the weight queue behind them
    constexpr int PREFETCHED = 32;  // chunks per block
    const int of_warp = max(1, PREFETCHED / warps), prefetched = share.first + share.of_strip * of_warp;
    share.begin(problem, lane, prefetched, min(of_warp, share.last - prefetched));
    const int own_last = share.strip < problem.strips ? share.last : share.first;
    int at = share.first + share.of_strip;

    float sums[ROWS] = {};
    uint32_t phase = 0;
    for (int segment = share.first; segment < share.last; segment += problem.segment, phase ^= 1) {
        const int end = min(segment + problem.segment, share.last), pitch = (end - segment) * INPUTS * 2 + mma::PADDING;
        const bool in_pieces = mma::in_vectors(problem.inputs);
        __syncthreads();  // barriers are initialized, and all products with the rows in shared memory are done
        if (!Pattern::IN_SLOTS && in_pieces) mma::bring_rows<T, INPUTS>(problem.inputs, segment, end, rows, pitch, rows_there);
        if (segment == share.first) ring.begin(share, at, own_last, shares, lane);
        if constexpr (Pattern::IN_SLOTS) {
            if (!in_pieces) Pattern::template bring_each<T, ROWS>(problem.inputs, segment, end, rows);
        } else {
            if (in_pieces) mma::clear_beyond<T, INPUTS>(problem.inputs, ROWS, segment, end, rows, pitch);
            else mma::gather_rows<T>(problem.inputs, ROWS, segment * INPUTS, (end - segment) * INPUTS, rows, pitch);
        }
        if (!Pattern::IN_SLOTS || !in_pieces) __syncthreads();
        // threads load a piece before they multiply by the previous one, so that other warps multiply while some wait for it
        for (int piece = Pattern::IN_SLOTS ? -1 : 0; piece < mma::PIECES; ++piece) {
            const int next = mma::piece_begin(segment, end, piece + 1);
            if constexpr (Pattern::IN_SLOTS) {
                if (in_pieces && piece + 1 < mma::PIECES) {
                    Pattern::template bring<T, ROWS>(problem.inputs, segment, next, mma::piece_begin(segment, end, piece + 2), rows);
                    __syncwarp();
                    if (lane == 0) barrier_arrive(rows_there + 8 * (piece + 1));
                }
                if (piece < 0) continue;
            }
            const int own_end = min(next, own_last);
            if (in_pieces) barrier_wait(rows_there + 8 * piece, phase);
            for (; at < own_end; at += shares) {
                Part chunk;
                ring.take(share, chunk, lane);
                const uint8_t* x = rows + (at - segment) * INPUTS * 2 * (Pattern::IN_SLOTS ? ROWS : 1);
                Pattern::template multiply<T>(sums, chunk, x, pitch, lane);
            }
        }
    }
    if (problem.dependent_launch == streams::LATE) pdl_launch_dependents();
    __syncthreads();
    float* target = reinterpret_cast<float*>(rows) + warp * ROWS * LANES;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) target[Pattern::template row<ROWS>(i, lane) * LANES + Pattern::template output<ROWS>(i, lane)] = sums[i];
    __syncthreads();
    thread_per_output::reduce_and_write<T, ROWS>(problem, reinterpret_cast<float*>(rows), share.first_strip * LANES, 0, share.rank);
}

// ROWS: smallest number of rows that holds m.
template <typename T, int ROWS = 8>
cudaError_t launch_rows(const thread_per_output::Problem& problem, const thread_per_output::Arguments& given, cudaStream_t stream) {
    if constexpr (ROWS < 64) {
        if (given.rows > ROWS) return launch_rows<T, 2 * ROWS>(problem, given, stream);
    }
    if (given.rows != ROWS || given.m > ROWS || given.stages < 1) return cudaErrorInvalidValue;
    const auto with = [&](auto kernel) {
        return thread_per_output::launch(kernel, problem, ROWS, given.shared_bytes, given.shares, stream, MOST_THREADS<ROWS>);
    };
    if (given.group_size == 4 && given.kept == 1) return with(n_m_mma_kernel<T, mma::OfFour<1>, ROWS>);
    if (given.group_size == 4 && given.kept == 2) return with(n_m_mma_kernel<T, mma::OfFour<2>, ROWS>);
    if constexpr (ROWS >= 16) {
        if (given.group_size == mma::ThreeOf32::GROUP) return with(n_m_mma_kernel<T, mma::ThreeOf32, ROWS>);
    }
    return cudaErrorInvalidValue;
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes, and that `shared_bytes` hold the chunks, and the inputs of a segment or all
// sums. rows: 8 (but not with groups of 32), 16, 32 or 64, at least m.
extern "C" int sparsefront_n_m_mma(const thread_per_output::Arguments* arguments, void* stream) {
    const thread_per_output::Problem problem = thread_per_output::problem_of(*arguments);
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (arguments->type) {
        case 2: return launch_rows<__half>(problem, *arguments, queue);
        case 3: return launch_rows<__nv_bfloat16>(problem, *arguments, queue);
        default: return cudaErrorInvalidValue;
    }
}
