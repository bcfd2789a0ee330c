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
constexpr int MOST_STAGES = 8;
constexpr int MOST_SPLITS = 16;

// What a grid does about the grids before and after it in the stream.
enum Overlap {
    APART = 0,      // starts when the one before has ended
    EARLY = 1,      // is launched while the one before runs, and waits for its end before it reads anything
    PREFETCH = 2,   // and has the weight brought into L2 meanwhile
    PREFETCH_LATE = 3,  // and lets the next one come only once its own loads have been asked for
};

struct Problem {
    const void* x;                 // element (row, input) at row * x_row_stride + input * x_input_stride
    unsigned x_input_stride;       // bytes
    long long x_row_stride;        // elements
    const uint8_t* stream;         // chunk after chunk: 16 inputs (lane q of a quad: four), then fragments
    long long stream_bytes;
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
    int region;                    // bytes of shared memory of a warp
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

// This block's share of the whole stream. L2 is where all reads meet, so that what is brought there early is never stale.
__device__ __forceinline__ void prefetch_weight(const Problem& problem, int warp, int warps) {
    const long long share = (problem.stream_bytes / gridDim.x + 15) / 16 * 16;
    const long long begin = share * blockIdx.x, part = (share / warps + 15) / 16 * 16;
    const long long wanted = min(static_cast<long long>(problem.prefetch_bytes / warps), part);
    const long long at = begin + part * warp, size = min(wanted, problem.stream_bytes - at) / 16 * 16;
    if (size > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(problem.stream + at), "r"(static_cast<uint32_t>(size)) : "memory");
}

// The chunks of a block's strip that are its own, dealt out to warps slot by slot.
template <typename T, int FRAGMENTS, int UNIT>
struct Work {
    static constexpr int PART_BYTES = FRAGMENTS * FRAGMENT_BYTES<T>, CHUNK_BYTES = LIST_BYTES + PART_BYTES;  // of a slot
    const uint8_t* from;  // the block's first chunk
    int count;            // chunks of the block
    int unit;             // chunks of a slot, UNIT at most
    int slots;            // of all warps
    int part, parts;      // which of the strip's outputs; how many parts a strip has
    int stored_bytes;     // of a chunk in the stream

    __device__ __forceinline__ Work(const Problem& problem, int strip, int part, int rank, int warps) : part(part) {
        int2 range = make_int2(strip * problem.chunks_of_each, problem.chunks_of_each);
        if (problem.chunks_of_each < 0) range = problem.strips[strip];
        const int begin = range.y * rank / problem.splits;
        count = range.y * (rank + 1) / problem.splits - begin;
        unit = max(1, min(UNIT, (count + warps - 1) / warps));
        slots = (count + unit - 1) / unit;
        parts = problem.width / (16 * FRAGMENTS);
        stored_bytes = LIST_BYTES + problem.width / 16 * FRAGMENT_BYTES<T>;
        from = problem.stream + static_cast<long long>(range.x + begin) * stored_bytes;
    }

    __device__ __forceinline__ int chunks(int slot) const { return min(unit, count - slot * unit); }

    __device__ __forceinline__ void load(int slot, uint32_t target, uint32_t barrier) const {
        const int held = chunks(slot);
        barrier_arrive_expect(barrier, held * CHUNK_BYTES);
        const uint8_t* source = from + static_cast<long long>(slot) * unit * stored_bytes;
        if (parts == 1) {
            copy_bulk(target, source, held * CHUNK_BYTES, barrier);
            return;
        }
        for (int chunk = 0; chunk < held; ++chunk, source += stored_bytes, target += CHUNK_BYTES) {
            copy_bulk(target, source, LIST_BYTES, barrier);
            copy_bulk(target + LIST_BYTES, source + LIST_BYTES + part * PART_BYTES, PART_BYTES, barrier);
        }
    }
};

// The gathered elements of X for the chunks of one slot: of each chunk, four inputs to a lane.
template <typename T, int COLUMN_BLOCKS, int UNIT>
struct Gathered {
    Elements<T, COLUMN_BLOCKS> x[UNIT][4];

    __device__ __forceinline__ void load(const void* base, unsigned stride, bool active, uint32_t slot, int chunk_bytes, int chunks, int lane) {
#pragma unroll
        for (int chunk = 0; chunk < UNIT; ++chunk) {
            if (chunk < chunks) {
                const uint2 list = load_shared_8(slot + chunk * chunk_bytes + lane % 4 * 8);
                const unsigned inputs[4] = {list.x & 0xFFFF, list.x >> 16, list.y & 0xFFFF, list.y >> 16};
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

// Writes the four sums that lane `lane` of a warp held of fragment and row block `place`.
template <typename T, int COLUMN_BLOCKS>
__device__ __forceinline__ void finish(const Problem& problem, const int* outputs, const float* biases, int index, float4 sums) {
    const int lane = index % 32, place = index / 32, fragment = place / COLUMN_BLOCKS, block = place % COLUMN_BLOCKS;
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int at = fragment * 16 + lane / 4 + i / 2 * 8, row = COLUMN_BLOCKS * (lane % 4 * 2 + i % 2) + block;
        const int output = outputs[at];
        if (output < 0 || row >= problem.m) continue;
        float v = activated(values[i] + biases[at], problem.activation);
        if (problem.residual != nullptr) {
            const long long from = row * problem.residual_row_stride + output * problem.residual_output_stride;
            v += widened(static_cast<const T*>(problem.residual)[from]);
        }
        static_cast<T*>(problem.y)[row * problem.y_row_stride + output * problem.y_output_stride] = rounded<T>(v);
    }
}

// Chunks of a slot: about 4 KB, and no more than the registers hold gathered elements for.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
constexpr int UNIT_OF = 16 / sizeof(T) / (FRAGMENTS > COLUMN_BLOCKS ? FRAGMENTS : COLUMN_BLOCKS) > 0
                            ? 16 / sizeof(T) / (FRAGMENTS > COLUMN_BLOCKS ? FRAGMENTS : COLUMN_BLOCKS)
                            : 1;

// FRAGMENTS: 16 outputs each, of one warp. COLUMN_BLOCKS: eight rows of X each.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
__global__ void __launch_bounds__(32 * MOST_WARPS, FRAGMENTS * COLUMN_BLOCKS <= (sizeof(T) == 2 ? 16 : 4) ? 2 : 1)
    gathered_skinny_kernel(const __grid_constant__ Problem problem) {
    constexpr int UNIT = UNIT_OF<T, FRAGMENTS, COLUMN_BLOCKS>;
    constexpr int CHUNK_BYTES = LIST_BYTES + FRAGMENTS * FRAGMENT_BYTES<T>;
    extern __shared__ __align__(128) uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[MOST_WARPS * MOST_STAGES];
    __shared__ int outputs[16 * FRAGMENTS];
    __shared__ float biases[16 * FRAGMENTS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const uint32_t ring = shared_address(dynamic_shared) + warp * problem.region;
    const uint32_t full = shared_address(barriers + warp * MOST_STAGES);
    if (lane == 0) {
        for (int stage = 0; stage < problem.stages; ++stage) barrier_init(full + 8 * stage, 1);
        fence_barrier_init();
        if (problem.overlap >= PREFETCH) prefetch_weight(problem, warp, warps);
    }
    __syncwarp();
    if (problem.overlap == EARLY || problem.overlap == PREFETCH) let_later_grids_start();
    if (problem.overlap != APART) wait_for_earlier_grids();

    const int rank = blockIdx.x % problem.splits, item = blockIdx.x / problem.splits;
    const int parts = problem.width / (16 * FRAGMENTS), strip = item / parts, part = item % parts;
    const Work<T, FRAGMENTS, UNIT> work(problem, strip, part, rank, warps);
    const int mine = work.slots > warp ? (work.slots - warp - 1) / warps + 1 : 0;
    if (lane == 0) {
        for (int stage = 0; stage < min(problem.stages, mine); ++stage)
            work.load(warp + stage * warps, ring + stage * UNIT * CHUNK_BYTES, full + 8 * stage);
    }
    if (problem.overlap == PREFETCH_LATE) let_later_grids_start();
    // needed at the end, but asked for now
    int output = -1;
    float bias = 0.0f;
    if (threadIdx.x < 16 * FRAGMENTS) {
        const int at = strip * problem.width + part * 16 * FRAGMENTS + threadIdx.x;
        output = problem.outputs != nullptr ? problem.outputs[at] : at < problem.n ? at : -1;
        if (output >= 0) bias = bias_at(problem.bias, problem.bias_type, output);
    }

    float acc[FRAGMENTS][COLUMN_BLOCKS][4] = {};
    const int first_row = lane / 4 * COLUMN_BLOCKS;  // of the rows of X that this lane holds
    const bool active = first_row < problem.m;
    const void* base = static_cast<const T*>(problem.x) + first_row * problem.x_row_stride;
    Gathered<T, COLUMN_BLOCKS, UNIT> even, odd;
    int stage = 0, ahead = 0;
    uint32_t ahead_phase = 0;
    const auto gather = [&](Gathered<T, COLUMN_BLOCKS, UNIT>& rows, int turn) {
        barrier_wait(full + 8 * ahead, ahead_phase);
        rows.load(base, problem.x_input_stride, active, ring + ahead * UNIT * CHUNK_BYTES, CHUNK_BYTES, work.chunks(warp + turn * warps), lane);
        if (++ahead == problem.stages) ahead = 0, ahead_phase ^= 1;
    };
    const auto step = [&](const Gathered<T, COLUMN_BLOCKS, UNIT>& rows, Gathered<T, COLUMN_BLOCKS, UNIT>& next, int turn) {
        if (turn + 1 < mine) gather(next, turn + 1);
        const int chunks = work.chunks(warp + turn * warps);
        const uint32_t slot = ring + stage * UNIT * CHUNK_BYTES + LIST_BYTES + lane * 16;
#pragma unroll
        for (int chunk = 0; chunk < UNIT; ++chunk) {
            if (chunk < chunks) multiply_chunk(acc, rows.x[chunk], slot + chunk * CHUNK_BYTES);
        }
        __syncwarp();  // every lane has read the slot
        if (lane == 0 && turn + problem.stages < mine)
            work.load(warp + (turn + problem.stages) * warps, ring + stage * UNIT * CHUNK_BYTES, full + 8 * stage);
        if (++stage == problem.stages) stage = 0;
    };
    if (mine > 0) gather(even, 0);
#pragma unroll 1
    for (int turn = 0; turn < mine; turn += 2) {  // two sets of registers take turns: a copy would wait for the loads
        step(even, odd, turn);
        if (turn + 1 < mine) step(odd, even, turn + 1);
    }

    // This warp's ring is done with: it takes the sums.
    constexpr int VECTORS = FRAGMENTS * COLUMN_BLOCKS * 32;
    float4* sums = reinterpret_cast<float4*>(dynamic_shared + warp * problem.region);
#pragma unroll
    for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
#pragma unroll
        for (int block = 0; block < COLUMN_BLOCKS; ++block) {
            const float* d = acc[fragment][block];
            sums[(fragment * COLUMN_BLOCKS + block) * 32 + lane] = make_float4(d[0], d[1], d[2], d[3]);
        }
    }
    if (threadIdx.x < 16 * FRAGMENTS) outputs[threadIdx.x] = output, biases[threadIdx.x] = bias;
    __syncthreads();
    const int used = max(1, min(warps, work.slots));  // warps that had a slot
    const bool alone = problem.splits == 1;
    for (int index = threadIdx.x; index < VECTORS; index += blockDim.x) {
        float4 sum = reinterpret_cast<const float4*>(dynamic_shared)[index];
        for (int other = 1; other < used; ++other) {
            const float4 v = reinterpret_cast<const float4*>(dynamic_shared + other * problem.region)[index];
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        if (alone) {
            finish<T, COLUMN_BLOCKS>(problem, outputs, biases, index, sum);
        } else {
            reinterpret_cast<float4*>(dynamic_shared)[index] = sum;
        }
    }
    if (alone) return;
    cluster_sync();
    for (int index = VECTORS * rank / problem.splits + threadIdx.x; index < VECTORS * (rank + 1) / problem.splits; index += blockDim.x) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int other = 0; other < problem.splits; ++other) {
            const float4 v = load_from_cluster(shared_address(dynamic_shared) + index * 16, other);
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        finish<T, COLUMN_BLOCKS>(problem, outputs, biases, index, sum);
    }
    cluster_sync();  // nobody ends while another reads
}

// X with any strides → [K, columns] with rows side by side, zeros from row m on; 32 inputs to a block.
template <typename T>
__global__ void __launch_bounds__(256) pack_rows_kernel(const T* x, long long input_stride, long long row_stride, T* packed, int k, int m, int columns, int overlap) {
    __shared__ T tile[64][33];
    if (overlap != APART) {
        let_later_grids_start();
        wait_for_earlier_grids();
    }
    const int lane = threadIdx.x % 32, first = blockIdx.x * 32;
    for (int row = threadIdx.x / 32; row < columns; row += 8) {
        const bool inside = row < m && first + lane < k;
        tile[row][lane] = inside ? x[row * row_stride + (first + lane) * input_stride] : rounded<T>(0.0f);
    }
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

template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
cudaError_t launch_product(Problem problem, int items, int warps, cudaStream_t stream) {
    const int ring = problem.stages * UNIT_OF<T, FRAGMENTS, COLUMN_BLOCKS> * (LIST_BYTES + FRAGMENTS * FRAGMENT_BYTES<T>);
    const int sums = FRAGMENTS * COLUMN_BLOCKS * 512;
    problem.region = (max(ring, sums) + 127) / 128 * 128;
    if (warps * 32 < 16 * FRAGMENTS) return cudaErrorInvalidValue;
    const auto kernel = gathered_skinny_kernel<T, FRAGMENTS, COLUMN_BLOCKS>;
    const int bytes = warps * problem.region;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess && problem.splits > 8)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
    return launch(kernel, items * problem.splits, 32 * warps, bytes, problem.splits, problem.overlap != APART, stream, problem);
}

template <typename T, int FRAGMENTS, int COLUMN_BLOCKS = 1>
cudaError_t launch_product_of(const Problem& problem, int items, int warps, cudaStream_t stream) {
    if constexpr (FRAGMENTS * COLUMN_BLOCKS * sizeof(T) <= 64) {  // the sums fit into registers
        if (problem.m <= 8 * COLUMN_BLOCKS) return launch_product<T, FRAGMENTS, COLUMN_BLOCKS>(problem, items, warps, stream);
        if constexpr (COLUMN_BLOCKS < 8) return launch_product_of<T, FRAGMENTS, 2 * COLUMN_BLOCKS>(problem, items, warps, stream);
    }
    return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch_all(Problem problem, void* packed, int k, int strips, int fragments, int warps, cudaStream_t stream) {
    if (packed != nullptr) {
        const int columns = problem.m <= 16 ? 16 : problem.m <= 32 ? 32 : 64;
        const cudaError_t error = launch(pack_rows_kernel<T>, (k + 31) / 32, 256, 0, 1, problem.overlap != APART, stream,
                                         static_cast<const T*>(problem.x), static_cast<long long>(problem.x_input_stride / sizeof(T)),
                                         problem.x_row_stride, static_cast<T*>(packed), k, problem.m, columns, problem.overlap);
        if (error != cudaSuccess) return error;
        problem.x = packed, problem.x_input_stride = columns * sizeof(T), problem.x_row_stride = 1;
    }
    const int items = strips * (problem.width / (16 * fragments));
    switch (fragments) {
        case 1: return launch_product_of<T, 1>(problem, items, warps, stream);
        case 2: return launch_product_of<T, 2>(problem, items, warps, stream);
        case 4: return launch_product_of<T, 4>(problem, items, warps, stream);
        case 8: return launch_product_of<T, 8>(problem, items, warps, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace

// Returns a cudaError_t. Strides are in elements. From nine rows on a lane reads the neighbouring rows of an input at once:
// X must then have rows side by side, aligned to 2, 4 or 8 elements (m <= 16, 32, 64), and m a multiple of that; where it is
// otherwise, `packed` is memory for k rows of 16, 32 or 64 elements. The caller checks shapes, and that fragments * 16 divides
// the width of a strip.
extern "C" int sparsefront_gathered_skinny(const void* x, void* packed, const void* stream_of_weight, const void* strips,
                                           const void* outputs, const void* bias, const void* residual, void* y,
                                           long long x_input_stride, long long x_row_stride, long long residual_row_stride,
                                           long long residual_output_stride, long long y_row_stride, long long y_output_stride,
                                           long long stream_bytes, int type, int bias_type, int activation, int m, int n, int k,
                                           int strip_count, int chunks_of_each, int width, int fragments, int splits, int warps, int stages,
                                           int overlap, int prefetch_bytes, void* stream) {
    if (m < 1 || m > 64 || x_input_stride >= (1ll << 30) || stages < 2 || stages > MOST_STAGES || warps < 1 || warps > MOST_WARPS ||
        splits < 1 || splits > MOST_SPLITS || width % (16 * fragments) != 0)
        return cudaErrorInvalidValue;
    const Problem problem{x,
                          static_cast<unsigned>(x_input_stride * (type == 1 ? 4 : 2)),
                          x_row_stride,
                          static_cast<const uint8_t*>(stream_of_weight),
                          stream_bytes,
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
                          overlap,
                          prefetch_bytes};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (type) {
        case 1: return launch_all<float>(problem, packed, k, strip_count, fragments, warps, queue);
        case 2: return launch_all<__half>(problem, packed, k, strip_count, fragments, warps, queue);
        case 3: return launch_all<__nv_bfloat16>(problem, packed, k, strip_count, fragments, warps, queue);
        default: return cudaErrorInvalidValue;
    }
}
