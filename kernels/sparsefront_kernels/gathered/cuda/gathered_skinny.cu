// Y = activation(X · W^T + bias) + residual for a gathered weight and few rows of X (m <= 64), on Hopper (sm_90a); half,
// bfloat16 and float.
//
// The weight is nearly all there is to read, so everything serves its stream. It was packed beforehand as the lanes of
// mma.m16n8k16 hold it: a chunk is a list of 16 inputs and, for every 16 outputs of a strip, 512 bytes, 16 to a lane.
// Each warp brings its own chunks by bulk copies into its own ring in shared memory, waits for nobody, and gathers the
// kept inputs of X straight into the registers of the second operand, one step ahead of the products. Which list item
// and which row of X stands at which place of a fragment is free, and is chosen so that a lane reads neighbours: with X
// feature-major a lane loads its (up to eight) rows of one input at once.
//
// Warps share the chunks of a strip, and so do the blocks of a cluster; sums are added up in shared memory in a fixed
// order, so that repeated runs give the same bits. See ../README.md.
#include "epilogue_math.cuh"
#include "hopper.cuh"

namespace {

constexpr int CHUNK = 16;            // kept inputs of a chunk: those of one product of the tensor cores
constexpr int LIST_BYTES = 2 * CHUNK;
template <typename T>
constexpr int FRAGMENT_BYTES = 256 * sizeof(T);  // 16 inputs x 16 outputs
constexpr unsigned NO_INPUT = 0xFFFF;
constexpr int MOST_WARPS = 8;
constexpr int GATHERERS = 4;         // warps that gather X into shared memory
constexpr int MOST_STAGES = 8;
constexpr int MOST_SPLITS = 8;
constexpr int MOST_WIDTH = 128;

// What a grid does about the grids before and after it in the stream.
enum Overlap {
    APART = 0,      // starts when the one before has ended
    EARLY = 1,      // is launched while the one before runs, and waits for its end before it reads anything
    PREFETCH = 2,   // and has the weight brought into L2 meanwhile
    PREFETCH_LATE = 3,  // and lets the next one come only once it has asked for all of its weight
};

struct Problem {
    const void* x;                 // element (row, input) at row * x_row_stride + input * x_input_stride
    unsigned x_input_stride;       // bytes
    long long x_row_stride;        // elements
    long long x_bytes;             // of X, to be brought into L2; 0 where it is spread too widely
    const uint8_t* lists;          // chunk after chunk: 16 inputs, lane q of a quad: four
    const uint8_t* panels;         // chunk after chunk: fragments
    long long chunks;              // of all strips
    const int2* strips;            // first chunk, number of chunks
    int chunks_of_each;            // where all strips have equally many, one strip after the other; else -1
    const int* outputs;            // [strips, width]: output, or -1; null where strips simply count up
    int width;                     // outputs of a strip
    int n, m;
    const void* bias;
    int bias_type;
    const void* residual;
    long long residual_row_stride, residual_output_stride;
    int activation;
    void* y;
    long long y_row_stride, y_output_stride;
    int splits;                    // blocks of a cluster, which share the chunks of a strip
    int stages;                    // of a warp's ring
    int region;                    // bytes of shared memory of a warp's ring, or of the block's
    int stage_chunks;              // of a stage that the warps of a block share
    int overlap;
    int prefetch_bytes;            // that a block has brought into L2, at most
};

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

// A float as the sum of two TF32 numbers, to within 2^-22 of it.
struct Parts {
    uint32_t large, small;

    __device__ __forceinline__ Parts() {}
    __device__ __forceinline__ explicit Parts(uint32_t bits) {
        const float v = __uint_as_float(bits);
        large = to_tf32(v);
        const float rest = v - __uint_as_float(large);
        small = rest == rest ? to_tf32(rest) : 0;  // infinity minus infinity: all of it is in the large part
    }
};

// One input's elements for the COLUMN_BLOCKS rows of X that a lane holds.
template <typename T, int COLUMN_BLOCKS>
struct Elements {
    static constexpr int BYTES = COLUMN_BLOCKS * sizeof(T), WORDS = (BYTES + 3) / 4;
    uint32_t word[WORDS];

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

__device__ __forceinline__ void wait_for_earlier_grids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_later_grids_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// X is small but everybody waits for it: its loads must not stand in line behind those of the weight.
__device__ __forceinline__ void prefetch_x(const void* x, long long bytes) {
    const long long at = 128ll * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x);
    if (at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(x) + at) : "memory");
}

// This warp's share of an array, at most `most` bytes. L2 is where all reads meet, so that what is brought there early is
// never stale.
__device__ __forceinline__ void prefetch_share(const uint8_t* all, long long bytes, long long most) {
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const long long share = (bytes / gridDim.x + 15) / 16 * 16, part = (share / warps + 15) / 16 * 16;
    const long long at = share * blockIdx.x + part * warp, size = min(min(most / warps, part), bytes - at) / 16 * 16;
    if (size > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(all + at), "r"(static_cast<uint32_t>(size)) : "memory");
}

// The chunks of a block's strip that are its own.
template <typename T>
struct Share {
    const uint8_t *lists, *panels;  // of the block's first chunk
    int count;                      // chunks of the block
    int panel_bytes;                // of a chunk

    // range: the strip's first chunk and number of chunks.
    __device__ __forceinline__ Share(const Problem& problem, int2 range, int rank) {
        const int begin = range.y * rank / problem.splits;
        count = range.y * (rank + 1) / problem.splits - begin;
        panel_bytes = problem.width / 16 * FRAGMENT_BYTES<T>;
        lists = problem.lists + static_cast<long long>(range.x + begin) * LIST_BYTES;
        panels = problem.panels + static_cast<long long>(range.x + begin) * panel_bytes;
    }

    // All lists of the block, which come before anything else: X is gathered by them.
    __device__ __forceinline__ void load_lists(uint32_t target, uint32_t barrier) const {
        barrier_arrive_expect(barrier, count * LIST_BYTES);
        copy_bulk(target, lists, count * LIST_BYTES, barrier);
    }
};

// The gathered elements of X for the chunks of one slot: of each chunk, four inputs to a lane.
template <typename T, int COLUMN_BLOCKS, int UNIT>
struct Gathered {
    Elements<T, COLUMN_BLOCKS> x[UNIT][4];

    // list_of: chunk → the lane's four inputs.
    template <typename ListOf>
    __device__ __forceinline__ void load(const void* base, unsigned stride, bool active, int chunks, const ListOf& list_of) {
#pragma unroll
        for (int chunk = 0; chunk < UNIT; ++chunk) {
            if (chunk < chunks) {
                const uint2 four = list_of(chunk);
                const unsigned inputs[4] = {four.x & 0xFFFF, four.x >> 16, four.y & 0xFFFF, four.y >> 16};
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    x[chunk][i].load(row_address(base, inputs[i], stride), active && inputs[i] != NO_INPUT);
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

// The same for float, on tensor cores too: each operand is the sum of two TF32 numbers, and of the four products all but
// that of the two small parts are added up. A chunk has sums of its own, since the tensor cores cut off where additions
// outside round.
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

// What a block needs at the end, asked for early.
struct Targets {
    int output = -1;
    float bias = 0.0f;

    // outputs: how many the block has, at most one to a thread; `first`: the place of its first in the strips' outputs.
    __device__ __forceinline__ Targets(const Problem& problem, int first, int outputs) {
        if (threadIdx.x >= outputs) return;
        const int at = first + threadIdx.x;
        output = problem.outputs != nullptr ? problem.outputs[at] : at < problem.n ? at : -1;
        if (output >= 0) bias = bias_at(problem.bias, problem.bias_type, output);
    }
};

__device__ __forceinline__ float load_float_from_cluster(uint32_t address, uint32_t rank) {
    uint32_t there;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}

struct SharedTargets {
    int output[MOST_WIDTH];
    float bias[MOST_WIDTH];
};

// In shared memory a warp's sums lie as [fragment][row block][4][33]: what lane l holds as its i-th is at [i][l].
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

// One element of Y of a block. INTERLEAVED: which rows of X the columns of a row block are.
template <int COLUMN_BLOCKS, bool INTERLEAVED>
struct Element {
    int output, row, at;  // output: of the block's; at: among the sums

    // Elements are counted so that neighbours are neighbours in Y.
    __device__ __forceinline__ Element(const Problem& problem, int outputs, int index) {
        if (problem.y_row_stride == 1) {
            output = index / problem.m, row = index - output * problem.m;
        } else {
            row = index / outputs, output = index - row * outputs;
        }
        const int column = INTERLEAVED ? row / COLUMN_BLOCKS : row % 8, block = INTERLEAVED ? row % COLUMN_BLOCKS : row / 8;
        at = (output / 16 * COLUMN_BLOCKS + block) * BLOCK_SUMS + (output / 8 % 2 * 2 + column % 2) * 33 + output % 8 * 4 + column / 2;
    }
};

// Apart from the rest, which is faster the shorter it is.
__device__ __noinline__ float activated_apart(float v, int activation) { return activated(v, activation); }

template <typename T, typename Element>
__device__ __forceinline__ void write(const Problem& problem, const SharedTargets& targets, const Element& element, float sum) {
    const int output = targets.output[element.output];
    if (output < 0) return;
    sum += targets.bias[element.output];
    if (problem.activation != NONE) sum = activated_apart(sum, problem.activation);
    if (problem.residual != nullptr) {
        const long long from = element.row * problem.residual_row_stride + output * problem.residual_output_stride;
        sum += widened(static_cast<const T*>(problem.residual)[from]);
    }
    static_cast<T*>(problem.y)[element.row * problem.y_row_stride + output * problem.y_output_stride] = rounded<T>(sum);
}

// In pairs; those that do not take part are zero.
__device__ __forceinline__ float sum_of(const float (&v)[8]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// Adds up the sums of `parties` warps (8 at most), which begin `stride` floats apart in shared memory, and then of the
// cluster's blocks, and writes Y. outputs: of the block. `threads` threads take part.
template <typename T, int COLUMN_BLOCKS, bool INTERLEAVED>
__device__ __forceinline__ void reduce_and_write(const Problem& problem, const SharedTargets& targets, float* sums, int stride,
                                                 int parties, int outputs, int threads, int rank) {
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    const int elements = outputs * problem.m;
    const bool alone = problem.splits == 1;
    if (alone || parties > 1) {
        for (int index = threadIdx.x; index < elements; index += threads) {
            const Element<COLUMN_BLOCKS, INTERLEAVED> element(problem, outputs, index);
            float v[8];
#pragma unroll
            for (int party = 0; party < 8; ++party) v[party] = party < parties ? sums[party * stride + element.at] : 0.0f;
            const float sum = sum_of(v);
            if (alone) {
                write<T>(problem, targets, element, sum);
            } else {
                sums[element.at] = sum;
            }
        }
    }
    if (alone) return;
    cluster_sync();
    for (int index = elements * rank / problem.splits + threadIdx.x; index < elements * (rank + 1) / problem.splits; index += threads) {
        const Element<COLUMN_BLOCKS, INTERLEAVED> element(problem, outputs, index);
        float v[8];
#pragma unroll
        for (int other = 0; other < 8; ++other)
            v[other] = other < problem.splits ? load_float_from_cluster(shared_address(sums + element.at), other) : 0.0f;
        write<T>(problem, targets, element, sum_of(v));
    }
    cluster_sync();  // nobody ends while another reads
}

// What both kernels begin with, once their barriers are initialised.
template <typename T>
__device__ __forceinline__ void begin(const Problem& problem) {
    prefetch_x(problem.x, problem.x_bytes);
    if (threadIdx.x % 32 == 0 && problem.overlap >= PREFETCH) {
        prefetch_share(problem.lists, problem.chunks * LIST_BYTES, problem.prefetch_bytes);
        prefetch_share(problem.panels, problem.chunks * (problem.width / 16 * FRAGMENT_BYTES<T>), problem.prefetch_bytes);
    }
    if (problem.overlap == EARLY || problem.overlap == PREFETCH) let_later_grids_start();
    __syncthreads();
    if (problem.overlap != APART) wait_for_earlier_grids();
}

// Chunks of a slot: about 4 KB, and no more than the registers hold gathered elements for.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
constexpr int UNIT_OF = 16 / sizeof(T) / (FRAGMENTS > COLUMN_BLOCKS ? FRAGMENTS : COLUMN_BLOCKS) > 0
                            ? 16 / sizeof(T) / (FRAGMENTS > COLUMN_BLOCKS ? FRAGMENTS : COLUMN_BLOCKS)
                            : 1;

// X gathered into registers by each warp for itself; warps share the chunks.
// FRAGMENTS: 16 outputs each, of one warp. COLUMN_BLOCKS: eight rows of X each.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
__global__ void __launch_bounds__(32 * MOST_WARPS, FRAGMENTS * COLUMN_BLOCKS <= (sizeof(T) == 2 ? 16 : 4) ? 2 : 1)
    gathered_skinny_kernel(const __grid_constant__ Problem problem) {
    constexpr int UNIT = UNIT_OF<T, FRAGMENTS, COLUMN_BLOCKS>;
    constexpr int CHUNK_BYTES = FRAGMENTS * FRAGMENT_BYTES<T>, SLOT_BYTES = UNIT * CHUNK_BYTES;
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[MOST_WARPS * MOST_STAGES + 1];
    __shared__ SharedTargets targets;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const uint32_t ring = shared_address(dynamic_shared) + warp * problem.region;
    const uint32_t lists = shared_address(dynamic_shared) + warps * problem.region;
    const uint32_t full = shared_address(barriers + warp * MOST_STAGES);
    const uint32_t listed = shared_address(barriers + MOST_WARPS * MOST_STAGES);
    if (lane == 0) {
        for (int stage = 0; stage < problem.stages; ++stage) barrier_init(full + 8 * stage, 1);
        if (warp == 0) barrier_init(listed, 1);
        fence_barrier_init();
    }
    const int rank = blockIdx.x % problem.splits, item = blockIdx.x / problem.splits;
    const int parts = problem.width / (16 * FRAGMENTS), strip = item / parts, part = item % parts;
    int2 range = make_int2(strip * problem.chunks_of_each, problem.chunks_of_each);
    begin<T>(problem);

    if (problem.chunks_of_each < 0) range = problem.strips[strip];
    const Share<T> share(problem, range, rank);
    const int unit = max(1, min(UNIT, (share.count + warps - 1) / warps));  // chunks of a slot
    const int slots = (share.count + unit - 1) / unit, mine = slots > warp ? (slots - warp - 1) / warps + 1 : 0;
    if (threadIdx.x == 0 && slots > warps) share.load_lists(lists, listed);  // else there are first slots only
    const auto chunks_of = [&](int turn) { return min(unit, share.count - (warp + turn * warps) * unit); };
    const auto load = [&](int turn, int stage) {
        const int chunks = chunks_of(turn);
        const uint32_t barrier = full + 8 * stage;
        uint32_t target = ring + stage * SLOT_BYTES;
        barrier_arrive_expect(barrier, chunks * CHUNK_BYTES);
        const uint8_t* source = share.panels + static_cast<long long>(warp + turn * warps) * unit * share.panel_bytes;
        if (parts == 1) {
            copy_bulk(target, source, chunks * CHUNK_BYTES, barrier);
            return;
        }
        source += part * CHUNK_BYTES;
        for (int chunk = 0; chunk < chunks; ++chunk, source += share.panel_bytes, target += CHUNK_BYTES)
            copy_bulk(target, source, CHUNK_BYTES, barrier);
    };
    uint2 first_lists[UNIT];  // those of the first slot do not wait for all others
#pragma unroll
    for (int chunk = 0; chunk < UNIT; ++chunk) {
        if (chunk < chunks_of(0))
            first_lists[chunk] = *reinterpret_cast<const uint2*>(share.lists + (warp * unit + chunk) * LIST_BYTES + lane % 4 * 8);
    }
    if (lane == 0) {
        for (int stage = 0; stage < min(problem.stages, mine); ++stage) load(stage, stage);
    }
    if (problem.overlap == PREFETCH_LATE && mine <= problem.stages) let_later_grids_start();
    const Targets own(problem, strip * problem.width + part * 16 * FRAGMENTS, 16 * FRAGMENTS);

    float acc[FRAGMENTS][COLUMN_BLOCKS][4] = {};
    const int first_row = lane / 4 * COLUMN_BLOCKS;  // of the rows of X that this lane holds
    const bool active = first_row < problem.m;
    const void* base = static_cast<const T*>(problem.x) + first_row * problem.x_row_stride;
    Gathered<T, COLUMN_BLOCKS, UNIT> even, odd;
    int stage = 0;
    uint32_t phase = 0;
    const auto gather = [&](Gathered<T, COLUMN_BLOCKS, UNIT>& rows, int turn) {
        const uint32_t own_lists = lists + (warp + turn * warps) * unit * LIST_BYTES + lane % 4 * 8;
        if (turn == 1) barrier_wait(listed, 0);
        rows.load(base, problem.x_input_stride, active, chunks_of(turn), [&](int chunk) { return load_shared_8(own_lists + chunk * LIST_BYTES); });
    };
    const auto step = [&](const Gathered<T, COLUMN_BLOCKS, UNIT>& rows, Gathered<T, COLUMN_BLOCKS, UNIT>& next, int turn) {
        if (turn + 1 < mine) gather(next, turn + 1);
        barrier_wait(full + 8 * stage, phase);
        const int chunks = chunks_of(turn);
        const uint32_t slot = ring + stage * SLOT_BYTES + lane * 16;
#pragma unroll
        for (int chunk = 0; chunk < UNIT; ++chunk) {
            if (chunk < chunks) multiply_chunk(acc, rows.x[chunk], slot + chunk * CHUNK_BYTES);
        }
        __syncwarp();  // every lane has read the slot
        if (lane == 0 && turn + problem.stages < mine) load(turn + problem.stages, stage);
        if (problem.overlap == PREFETCH_LATE && turn + problem.stages + 1 == mine) let_later_grids_start();
        if (++stage == problem.stages) stage = 0, phase ^= 1;
    };
    if (mine > 0) even.load(base, problem.x_input_stride, active, chunks_of(0), [&](int chunk) { return first_lists[chunk]; });
#pragma unroll 1
    for (int turn = 0; turn < mine; turn += 2) {  // two sets of registers take turns: a copy would wait for the loads
        step(even, odd, turn);
        if (turn + 1 < mine) step(odd, even, turn + 1);
    }

    // This warp's ring is done with: it takes the sums.
    store_sums(reinterpret_cast<float*>(dynamic_shared + warp * problem.region), acc, lane);
    if (threadIdx.x < 16 * FRAGMENTS) targets.output[threadIdx.x] = own.output, targets.bias[threadIdx.x] = own.bias;
    reduce_and_write<T, COLUMN_BLOCKS, true>(problem, targets, reinterpret_cast<float*>(dynamic_shared), problem.region / 4,
                                             max(1, min(warps, slots)), 16 * FRAGMENTS, blockDim.x, rank);
}

// Four 8 x 8 matrices of 16-bit elements, transposed; lanes 8i to 8i + 7 give the rows of matrix i.
__device__ __forceinline__ void load_transposed(uint32_t (&v)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(uint32_t (&v)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address) : "memory");
}

__device__ __forceinline__ unsigned load_shared_2(uint32_t address) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
    return v;
}

// X gathered into shared memory by warps of their own, for all others, which share the outputs of a strip (and, where those
// are fewer than the warps have places for, the chunks of a stage). 16-bit elements; X has its rows side by side, eight at
// a time.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
__global__ void __launch_bounds__(32 * (MOST_WARPS + GATHERERS), FRAGMENTS * COLUMN_BLOCKS <= 8 ? 2 : 1)
    gathered_skinny_shared_kernel(const __grid_constant__ Problem problem) {
    constexpr int ROW_BYTES = 16 * COLUMN_BLOCKS, CHUNK_X_BYTES = CHUNK * ROW_BYTES;
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * MOST_STAGES + 1];
    __shared__ SharedTargets targets;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ring = shared_address(dynamic_shared), lists = ring + problem.region;
    const uint32_t full = shared_address(barriers), empty = full + 8 * MOST_STAGES, listed = empty + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < problem.stages; ++stage) {
            barrier_init(full + 8 * stage, 32 * GATHERERS + 1);
            barrier_init(empty + 8 * stage, MOST_WARPS);
        }
        barrier_init(listed, 1);
        fence_barrier_init();
    }
    const int rank = blockIdx.x % problem.splits, strip = blockIdx.x / problem.splits;
    int2 range = make_int2(strip * problem.chunks_of_each, problem.chunks_of_each);
    begin<T>(problem);

    if (problem.chunks_of_each < 0) range = problem.strips[strip];
    const Share<T> share(problem, range, rank);
    const int stage_chunks = problem.stage_chunks, turns = (share.count + stage_chunks - 1) / stage_chunks;
    const int x_offset = stage_chunks * share.panel_bytes, stage_bytes = x_offset + stage_chunks * CHUNK_X_BYTES;
    if (warp >= MOST_WARPS) {
        const int gatherer = threadIdx.x - 32 * MOST_WARPS;
        const auto load_panels = [&](int turn, int stage) {
            const int bytes = min(stage_chunks, share.count - turn * stage_chunks) * share.panel_bytes;
            barrier_arrive_expect(full + 8 * stage, bytes);
            copy_bulk(ring + stage * stage_bytes, share.panels + static_cast<long long>(turn) * x_offset, bytes, full + 8 * stage);
        };
        if (gatherer == 0 && turns > 0) {
            share.load_lists(lists, listed);
            for (int stage = 0; stage < min(problem.stages, turns); ++stage) load_panels(stage, stage);
        }
        if (problem.overlap == PREFETCH_LATE && turns <= problem.stages) let_later_grids_start();
        if (turns > 0) barrier_wait(listed, 0);
        int stage = 0;
        uint32_t phase = 1;
        for (int turn = 0; turn < turns; ++turn) {
            if (turn >= problem.stages) {
                barrier_wait(empty + 8 * stage, phase);
                if (gatherer == 0) load_panels(turn, stage);
                if (problem.overlap == PREFETCH_LATE && turn + 1 == turns) let_later_grids_start();
            }
            const uint32_t target = ring + stage * stage_bytes + x_offset;
            const int vectors = min(stage_chunks, share.count - turn * stage_chunks) * CHUNK * COLUMN_BLOCKS;
            const uint32_t list = lists + turn * stage_chunks * LIST_BYTES;
#pragma unroll 4
            for (int at = gatherer; at < vectors; at += 32 * GATHERERS) {
                const int row = at / COLUMN_BLOCKS, vector = at % COLUMN_BLOCKS;
                // which item of the list stands at this place of the right operand
                const int item = row % 8 / 2 * 4 + row % 2 + row % 16 / 8 * 2;
                const unsigned input = load_shared_2(list + row / 16 * LIST_BYTES + 2 * item);
                const int place = vector ^ (row / (8 / COLUMN_BLOCKS) % COLUMN_BLOCKS);  // no two of eight rows share banks
                copy_16_bytes(target + row * ROW_BYTES + place * 16,
                              static_cast<const uint8_t*>(row_address(problem.x, input, problem.x_input_stride)) + vector * 16,
                              input != NO_INPUT && vector * 8 < problem.m ? 16 : 0);
            }
            barrier_arrive_after_copies(full + 8 * stage);
            if (++stage == problem.stages) stage = 0, phase ^= 1;
        }
        wait_for_own_copies();
        return;
    }
    const Targets own(problem, strip * problem.width, problem.width);
    const int owners = problem.width / (16 * FRAGMENTS);  // warps that share the outputs; the others share the chunks
    const int owner = warp % owners, party = warp / owners, parties = MOST_WARPS / owners;
    float acc[FRAGMENTS][COLUMN_BLOCKS][4] = {};
    int stage = 0;
    uint32_t phase = 0;
    // this lane's row of a matrix that ldmatrix reads
    constexpr int AT_ONCE = COLUMN_BLOCKS == 1 ? 1 : 2;  // row blocks
    const int row = lane % 16, first_vector = AT_ONCE == 2 ? lane / 16 : 0;
    const int turned = row / (8 / COLUMN_BLOCKS) % COLUMN_BLOCKS;
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
        const int chunks = min(stage_chunks, share.count - turn * stage_chunks);
        const uint32_t panels = ring + stage * stage_bytes + owner * FRAGMENTS * FRAGMENT_BYTES<T> + lane * 16;
        const uint32_t rows = ring + stage * stage_bytes + x_offset + row * ROW_BYTES;
        barrier_wait(full + 8 * stage, phase);
#pragma unroll 2
        for (int chunk = party; chunk < chunks; chunk += parties) {
            uint4 a[FRAGMENTS];
#pragma unroll
            for (int fragment = 0; fragment < FRAGMENTS; ++fragment)
                a[fragment] = load_shared_16(panels + chunk * share.panel_bytes + fragment * FRAGMENT_BYTES<T>);
#pragma unroll
            for (int block = 0; block < COLUMN_BLOCKS; block += AT_ONCE) {
                uint32_t b[2 * AT_ONCE];
                load_transposed(b, rows + chunk * CHUNK_X_BYTES + ((block + first_vector) ^ turned) * 16);
#pragma unroll
                for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
#pragma unroll
                    for (int i = 0; i < AT_ONCE; ++i) multiply_add<T>(acc[fragment][block + i], a[fragment], b[2 * i], b[2 * i + 1]);
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + 8 * stage);
        if (++stage == problem.stages) stage = 0, phase ^= 1;
    }
    asm volatile("bar.sync 1, %0;" ::"n"(32 * MOST_WARPS) : "memory");  // the ring is done with: it takes the sums
    const int party_sums = problem.width / 16 * COLUMN_BLOCKS * BLOCK_SUMS;
    float* sums = reinterpret_cast<float*>(dynamic_shared);
    store_sums(sums + party * party_sums + owner * FRAGMENTS * COLUMN_BLOCKS * BLOCK_SUMS, acc, lane);
    if (threadIdx.x < problem.width) targets.output[threadIdx.x] = own.output, targets.bias[threadIdx.x] = own.bias;
    reduce_and_write<T, COLUMN_BLOCKS, false>(problem, targets, sums, party_sums, parties, problem.width, 32 * MOST_WARPS, rank);
}

// X with any strides → [K, columns] with rows side by side, zeros from row m on; 32 inputs to a block.
template <typename T>
__global__ void __launch_bounds__(256) pack_rows_kernel(const T* x, long long x_bytes, long long input_stride, long long row_stride, T* packed, int k, int m, int columns, int overlap) {
    __shared__ T tile[64][33];
    prefetch_x(x, x_bytes);
    if (overlap != APART) {
        let_later_grids_start();
        wait_for_earlier_grids();
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 32;
    T elements[8];  // all on their way before the first is needed
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = warp + 8 * i;
        elements[i] = row < m && first + lane < k ? x[row * row_stride + (first + lane) * input_stride] : rounded<T>(0.0f);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) tile[warp + 8 * i][lane] = elements[i];
    __syncthreads();
    for (int at = threadIdx.x; at < 32 * columns; at += 256) {
        if (first + at / columns < k) packed[static_cast<long long>(first) * columns + at] = tile[at % columns][at / columns];
    }
}

template <typename Kernel, typename... Arguments>
cudaError_t launch(Kernel kernel, int blocks, int threads, int shared_bytes, int splits, bool early, cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    if (splits > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
    }
    if (early) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

constexpr int rounded_up(int bytes) { return (bytes + 127) / 128 * 128; }

// How a grid is launched.
struct Shape {
    int strips, most_chunks;
    bool shared;  // X is gathered into shared memory
    int fragments, warps;
};

template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
cudaError_t launch_product(Problem problem, const Shape& shape, cudaStream_t stream) {
    const int list_bytes = rounded_up((shape.most_chunks + problem.splits - 1) / problem.splits * LIST_BYTES);
    const int owners = problem.width / (16 * FRAGMENTS);
    void (*kernel)(Problem) = gathered_skinny_kernel<T, FRAGMENTS, COLUMN_BLOCKS>;
    int warps = shape.warps, blocks = shape.strips * owners, bytes = 0;
    if (shape.shared) {
        if constexpr (sizeof(T) == 4) {
            return cudaErrorInvalidValue;
        } else {
            kernel = gathered_skinny_shared_kernel<T, FRAGMENTS, COLUMN_BLOCKS>;
            if (owners > MOST_WARPS) return cudaErrorInvalidValue;
            warps = MOST_WARPS + GATHERERS, blocks = shape.strips;
            const int parties = MOST_WARPS / owners;
            if (problem.stage_chunks < parties) problem.stage_chunks = parties;
            const int stage_bytes = problem.stage_chunks * (problem.width * 32 + CHUNK * 16 * COLUMN_BLOCKS);
            problem.region = rounded_up(max(problem.stages * stage_bytes, parties * problem.width * 33 * COLUMN_BLOCKS));
            bytes = problem.region + list_bytes;
        }
    } else {
        if (warps * 32 < 16 * FRAGMENTS) return cudaErrorInvalidValue;
        const int ring = problem.stages * UNIT_OF<T, FRAGMENTS, COLUMN_BLOCKS> * FRAGMENTS * FRAGMENT_BYTES<T>;
        problem.region = rounded_up(max(ring, FRAGMENTS * COLUMN_BLOCKS * BLOCK_SUMS * 4));
        bytes = warps * problem.region + list_bytes;
    }
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    // blocks of one grid and the next are to find room together, and a change of the carve-out waits for an idle processor
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
    return launch(kernel, blocks * problem.splits, 32 * warps, bytes, problem.splits, problem.overlap != APART, stream, problem);
}

template <typename T, int FRAGMENTS, int COLUMN_BLOCKS = 1>
cudaError_t launch_product_of(const Problem& problem, const Shape& shape, cudaStream_t stream) {
    if constexpr (FRAGMENTS * COLUMN_BLOCKS * sizeof(T) <= 64) {  // the sums fit into registers
        if (problem.m <= 8 * COLUMN_BLOCKS) return launch_product<T, FRAGMENTS, COLUMN_BLOCKS>(problem, shape, stream);
        if constexpr (COLUMN_BLOCKS < 8) return launch_product_of<T, FRAGMENTS, 2 * COLUMN_BLOCKS>(problem, shape, stream);
    }
    return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch_all(Problem problem, void* packed, int k, const Shape& shape, cudaStream_t stream) {
    if (packed != nullptr) {
        const int columns = problem.m <= 8 ? 8 : problem.m <= 16 ? 16 : problem.m <= 32 ? 32 : 64;
        const cudaError_t error = launch(pack_rows_kernel<T>, (k + 31) / 32, 256, 0, 1, problem.overlap != APART, stream,
                                         static_cast<const T*>(problem.x), problem.x_bytes, static_cast<long long>(problem.x_input_stride / sizeof(T)),
                                         problem.x_row_stride, static_cast<T*>(packed), k, problem.m, columns, problem.overlap);
        if (error != cudaSuccess) return error;
        problem.x = packed, problem.x_input_stride = columns * sizeof(T), problem.x_row_stride = 1;
        problem.x_bytes = 0;
    }
    switch (shape.fragments) {
        case 1: return launch_product_of<T, 1>(problem, shape, stream);
        case 2: return launch_product_of<T, 2>(problem, shape, stream);
        case 4: return launch_product_of<T, 4>(problem, shape, stream);
        case 8: return launch_product_of<T, 8>(problem, shape, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace

// Returns a cudaError_t. Strides are in elements. A lane reads the neighbouring rows of an input at once from nine rows on
// (2, 4 or 8 elements for m <= 16, 32, 64), and where X is gathered into shared memory, eight: X must then have rows side by
// side, aligned to as many elements (at most 16 bytes), and m a multiple of that; where it is otherwise, `packed` is memory for
// k times 8, 16, 32 or 64 elements. The caller checks shapes, and that fragments * 16 divides the width of a strip. x_bytes:
// of memory that X spans, 0 where that is much more than it holds.
extern "C" int sparsefront_gathered_skinny(const void* x, void* packed, const void* lists, const void* panels, const void* strips,
                                           const void* outputs, const void* bias, const void* residual, void* y,
                                           long long x_input_stride, long long x_row_stride, long long residual_row_stride,
                                           long long residual_output_stride, long long y_row_stride, long long y_output_stride,
                                           long long x_bytes, long long chunks, int type, int bias_type, int activation, int m,
                                           int n, int k, int strip_count, int chunks_of_each, int most_chunks, int width, int shared,
                                           int fragments, int splits, int warps, int stages, int stage_chunks, int overlap,
                                           int prefetch_bytes, void* stream) {
    if (m < 1 || m > 64 || x_input_stride >= (1ll << 30) || stages < 2 || stages > MOST_STAGES || warps < 1 || warps > MOST_WARPS ||
        splits < 1 || splits > MOST_SPLITS || width > MOST_WIDTH || width % (16 * fragments) != 0)
        return cudaErrorInvalidValue;
    const Problem problem{x,
                          static_cast<unsigned>(x_input_stride * (type == 1 ? 4 : 2)),
                          x_row_stride,
                          x_bytes,
                          static_cast<const uint8_t*>(lists),
                          static_cast<const uint8_t*>(panels),
                          chunks,
                          static_cast<const int2*>(strips),
                          chunks_of_each,
                          static_cast<const int*>(outputs),
                          width,
                          n,
                          m,
                          bias,
                          bias_type,
                          residual,
                          residual_row_stride,
                          residual_output_stride,
                          activation,
                          y,
                          y_row_stride,
                          y_output_stride,
                          splits,
                          stages,
                          0,
                          stage_chunks,
                          overlap,
                          prefetch_bytes};
    const Shape shape{strip_count, most_chunks, shared != 0, fragments, warps};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (type) {
        case 1: return launch_all<float>(problem, packed, k, shape, queue);
        case 2: return launch_all<__half>(problem, packed, k, shape, queue);
        case 3: return launch_all<__nv_bfloat16>(problem, packed, k, shape, queue);
        default: return cudaErrorInvalidValue;
    }
}
