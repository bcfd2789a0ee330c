// Y[N, M] = activation(W[N, K] · X[K, M] + bias[N]) + residual for a gathered weight on Hopper's CUDA cores (sm_90a), in
// float32 throughout, feature-major.
//
// A block of the grid computes one tile of 32, 64 or 128 outputs, which share their kept inputs, times BLOCK_M columns. Four
// more warps load: a kept input is one bulk copy of BLOCK_M contiguous elements of X, and the weights of a stage are one more.
// Four warps multiply, each 32 outputs x 8 · COLUMNS columns, a thread 8 outputs x COLUMNS columns in registers. Where the
// columns of a block need fewer warps than four, SLICES of them share the inputs of a stage, and where the grid is small,
// `splits` blocks of a cluster share the inputs of a tile; both add up through shared memory in a fixed order. Where nothing
// is to be added up, a block goes on with another tile, whose rows are loaded while it still multiplies.
// Hierarchical blocking and double buffering: "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU",
// 2025. See ../README.md.
#include "epilogue_math.cuh"
#include "hopper.cuh"

namespace {

constexpr int WARPS = 4;  // that multiply, and as many that load: registers are moved between groups of four warps
constexpr int CONSUMERS = 32 * WARPS;
constexpr int THREADS = 2 * CONSUMERS;
constexpr int MOST_STAGES = 16;
constexpr int STAGES_AHEAD = 4;  // that are brought into L2 before the kernels before this one have ended

struct Problem {
    const float* x;        // [K, m], rows `x_stride` elements apart
    const float* panels;   // [kept inputs of all tiles, outputs of a tile]
    const int* kept;       // the kept inputs of all tiles
    const int2* tiles;     // first kept input, number of kept inputs
    int kept_of_each;      // where all tiles keep equally many inputs, how many; else 0
    const int* outputs;    // [tiles, outputs of a tile]: row of Y, or -1
    const void* bias;
    const float* residual;  // as y, or null
    float* y;              // [N, m], rows `y_stride` elements apart
    long long x_stride, y_stride, residual_stride;
    int bias_type;
    int activation;
    int m, k;
    int tile_count;
    int stages;
    int splits;
};

template <int WIDTH_, int SLICES_, int OUTPUTS_, int COLUMNS_>
struct Shape {
    static constexpr int WIDTH = WIDTH_, SLICES = SLICES_, OUTPUTS = OUTPUTS_, COLUMNS = COLUMNS_;
    static constexpr int LANES_ALONG_N = 32 / OUTPUTS, LANES_ALONG_M = OUTPUTS;
    static constexpr int OUTPUT_STRIDE = 4 * LANES_ALONG_N, COLUMN_STRIDE = 4 * LANES_ALONG_M;  // of a thread's groups of 4
    static constexpr int WARPS_ALONG_N = WIDTH / 32;
    static constexpr int WARPS_ALONG_M = WARPS / (WARPS_ALONG_N * SLICES);
    static constexpr int WARP_M = LANES_ALONG_M * COLUMNS;
    static constexpr int BLOCK_M = WARPS_ALONG_M * WARP_M;
    static constexpr int WARP_ROWS = 8;
    static constexpr int ROWS = WARP_ROWS * SLICES;  // kept inputs of a stage
    static constexpr int X_FLOATS = ROWS * BLOCK_M;
    static constexpr int STAGE_BYTES = ROWS * (BLOCK_M + WIDTH) * 4;
    static constexpr int X_STEP = SLICES * BLOCK_M * 4, W_STEP = SLICES * WIDTH * 4;  // bytes to a warp's next input
    static constexpr int SUMS_BYTES = CONSUMERS * OUTPUTS * COLUMNS * 4;
    static constexpr int BLOCKS_PER_SM = COLUMNS == 8 && SLICES == 1 ? 3 : 2;
    // Registers of a thread that multiplies and of one that loads: together twice what a thread starts with.
    static constexpr int CONSUMER_REGISTERS = BLOCKS_PER_SM == 2 ? 224 : 128;
    static constexpr int PRODUCER_REGISTERS = 32;
};

// The kept inputs that fall to this block: `count` of them from `first` on.
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int tile, int rows) {
        int2 all = make_int2(tile * problem.kept_of_each, problem.kept_of_each);
        if (problem.kept_of_each == 0) all = problem.tiles[tile];  // one trip to memory more before the first row of X
        const int steps = (all.y + rows - 1) / rows, rank = rank_in_cluster();
        const int begin = steps * rank / problem.splits * rows;
        const int end = min(steps * (rank + 1) / problem.splits * rows, all.y);
        first = all.x + begin, count = max(end - begin, 0);
    }
};

// Piece of work number `index`: all tiles of a block of columns are neighbours, since they share rows of X in L2.
template <typename S>
struct Item {
    int tile, column;

    __device__ __forceinline__ Item(const Problem& problem, int index)
        : tile(index % problem.tile_count), column(index / problem.tile_count * S::BLOCK_M) {}
};

// As barrier_wait, for those who have time: asking all the time takes issue slots from those who multiply.
__device__ __forceinline__ void barrier_wait_idly(uint32_t barrier, uint32_t phase) {
    while (true) {
        uint32_t ended;
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(ended)
            : "r"(barrier), "r"(phase)
            : "memory");
        if (ended) return;
        __nanosleep(500);
    }
}

// Position in the ring of stages.
struct Ring {
    int slot = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ Ring next(int stages) const {
        return slot + 1 == stages ? Ring{0, phase ^ 1} : Ring{slot + 1, phase};
    }
};

// Where a thread's sums belong: groups of 4 outputs of the tile and of 4 columns of the block.
template <typename S>
struct Place {
    int output, column;  // the first
    int slice;
    int position;  // among the threads of a slice

    __device__ __forceinline__ Place() {
        const int warp = threadIdx.x / 32 - WARPS, lane = threadIdx.x % 32;
        output = warp % S::WARPS_ALONG_N * 32 + lane / S::LANES_ALONG_M * 4;
        column = warp / S::WARPS_ALONG_N % S::WARPS_ALONG_M * S::WARP_M + lane % S::LANES_ALONG_M * 4;
        slice = warp / (S::WARPS_ALONG_N * S::WARPS_ALONG_M);
        position = threadIdx.x % (CONSUMERS / S::SLICES);
    }

    // Of the 32 of its warp, the thread's output number n.
    __device__ __forceinline__ int output_of(int n) const { return output % 32 + n / 4 * S::OUTPUT_STRIDE + n % 4; }
};

#define ADD_TO_PAIR(PRODUCTS) "{\n.reg .f32 a, b;\nmov.b64 {a, b}, %0;\n" PRODUCTS "mov.b64 %0, {a, b};\n}"

// Where a thread adds up. Registers lie in two banks, even and odd, each of which gives one operand a cycle; a product needs
// a sum, an element of X and a weight, which stays beside the multiplier for a whole row of sums. So sum and element should
// lie in different banks. 16-byte reads put elements 0, 2, ... into even registers. Sums are held as pairs of 64 bits, whose
// first halves lie in even registers, and pair p holds the sums of columns 2p + 1 and 2p + 2.
template <typename S>
struct Sums {
    static constexpr int PAIRS = S::COLUMNS / 2;
    uint64_t pairs[S::OUTPUTS][PAIRS] = {};

    // += weights · elements. Neighbouring rows go through the columns in opposite directions: the element where they turn
    // stays beside the multiplier while the next weight comes.
    __device__ __forceinline__ void add_products(const float (&w)[S::OUTPUTS], const float (&x)[S::COLUMNS]) {
#pragma unroll
        for (int n = 0; n < S::OUTPUTS; ++n) {
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const int p = n % 2 ? PAIRS - 1 - i : i;
                const float low = x[2 * p + 1], high = x[(2 * p + 2) % S::COLUMNS];
                if (n % 2) {
                    asm(ADD_TO_PAIR("fma.rn.f32 b, %1, %3, b;\nfma.rn.f32 a, %1, %2, a;\n")
                        : "+l"(pairs[n][p]) : "f"(w[n]), "f"(low), "f"(high));
                } else {
                    asm(ADD_TO_PAIR("fma.rn.f32 a, %1, %2, a;\nfma.rn.f32 b, %1, %3, b;\n")
                        : "+l"(pairs[n][p]) : "f"(w[n]), "f"(low), "f"(high));
                }
            }
        }
    }

    // Of output n, columns m to m + 3; m a multiple of 4.
    __device__ __forceinline__ float4 four(int n, int m) const {
        float before, v[4], after;
        asm("mov.b64 {%0, %1}, %2;" : "=f"(before), "=f"(v[0]) : "l"(pairs[n][(m / 2 + PAIRS - 1) % PAIRS]));
        asm("mov.b64 {%0, %1}, %2;" : "=f"(v[1]), "=f"(v[2]) : "l"(pairs[n][m / 2]));
        asm("mov.b64 {%0, %1}, %2;" : "=f"(v[3]), "=f"(after) : "l"(pairs[n][m / 2 + 1]));
        return make_float4(v[0], v[1], v[2], v[3]);
    }
};

__device__ __forceinline__ void load_four(float* v, uint32_t address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(address));
}

// What a thread multiplies for one kept input.
template <typename S>
struct Fragment {
    float w[S::OUTPUTS], x[S::COLUMNS];

    // From addresses in shared memory.
    __device__ __forceinline__ void load(uint32_t weights, uint32_t row) {
#pragma unroll
        for (int i = 0; i < S::OUTPUTS / 4; ++i) load_four(w + 4 * i, weights + 4 * S::OUTPUT_STRIDE * i);
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 4; ++i) load_four(x + 4 * i, row + 4 * S::COLUMN_STRIDE * i);
    }
};

// Writes four neighbouring columns of an output.
__device__ __forceinline__ void store(const Problem& problem, int output, int column, float4 v) {
    if (output < 0 || column >= problem.m) return;
    if (problem.residual) {
        const float4 r = *reinterpret_cast<const float4*>(problem.residual + output * problem.residual_stride + column);
        v.x += r.x, v.y += r.y, v.z += r.z, v.w += r.w;
    }
    *reinterpret_cast<float4*>(problem.y + output * problem.y_stride + column) = v;
}

// Straight from the registers, where nothing is to be added up and no activation to be computed.
template <typename S>
__device__ __forceinline__ void store_sums(const Problem& problem, const Place<S>& place, const Item<S>& item,
                                           const int* outputs, const Sums<S>& sums) {
#pragma unroll
    for (int n = 0; n < S::OUTPUTS; ++n) {
        const int output = outputs[place.output_of(n)];
        const float bias = output >= 0 ? bias_at(problem.bias, problem.bias_type, output) : 0.0f;
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 4; ++i) {
            const float4 v = sums.four(n, 4 * i);
            store(problem, output, item.column + place.column + S::COLUMN_STRIDE * i,
                  make_float4(v.x + bias, v.y + bias, v.z + bias, v.w + bias));
        }
    }
}

__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// Adds up what the slices hold, and then the blocks of the cluster, in shared memory that the stages no longer need; each
// slice of each block finishes its share.
template <typename S>
__device__ __forceinline__ void add_up_and_store(const Problem& problem, const Place<S>& place, const Item<S>& item,
                                                 const int* outputs, float* shared, const Sums<S>& sums) {
    constexpr int GROUPS = S::COLUMNS / 4, PARTS = S::OUTPUTS * GROUPS;  // of 4 columns
    constexpr int POSITIONS = CONSUMERS / S::SLICES;
    float4* all = reinterpret_cast<float4*>(shared);  // [slices, parts, positions]
    consumers_sync();                                  // all have read all stages
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        all[(place.slice * PARTS + part) * POSITIONS + place.position] = sums.four(part / GROUPS, part % GROUPS * 4);
    consumers_sync();
    const auto sum_of_slices = [&](int part) {
        float4 v = all[part * POSITIONS + place.position];
#pragma unroll
        for (int slice = 1; slice < S::SLICES; ++slice) {
            const float4 other = all[(slice * PARTS + part) * POSITIONS + place.position];
            v.x += other.x, v.y += other.y, v.z += other.z, v.w += other.w;
        }
        return v;
    };
    if (problem.splits > 1) {
        for (int part = place.slice; S::SLICES > 1 && part < PARTS; part += S::SLICES)
            all[part * POSITIONS + place.position] = sum_of_slices(part);
        cluster_sync();
    }
#pragma unroll 1
    for (int part = rank_in_cluster() * S::SLICES + place.slice; part < PARTS; part += problem.splits * S::SLICES) {
        float4 v;
        if (problem.splits == 1) {
            v = sum_of_slices(part);
        } else {
            const uint32_t own = shared_address(all + part * POSITIONS + place.position);
            v = load_from_cluster(own, 0);
#pragma unroll 4
            for (int rank = 1; rank < problem.splits; ++rank) {
                const float4 other = load_from_cluster(own, rank);
                v.x += other.x, v.y += other.y, v.z += other.z, v.w += other.w;
            }
        }
        const int output = outputs[place.output_of(part / GROUPS)];
        const float bias = output >= 0 ? bias_at(problem.bias, problem.bias_type, output) : 0.0f;
        v = make_float4(activated(v.x + bias, problem.activation), activated(v.y + bias, problem.activation),
                        activated(v.z + bias, problem.activation), activated(v.w + bias, problem.activation));
        store(problem, output, item.column + place.column + part % GROUPS * S::COLUMN_STRIDE, v);
    }
    // nobody ends while another reads
    if (problem.splits > 1)
        asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <typename S>
__device__ __forceinline__ void consume(const Problem& problem, int items, uint32_t stages, uint32_t full, uint32_t empty) {
    __shared__ alignas(16) int all_outputs[WARPS][32];
    const Place<S> place;
    const int lane = threadIdx.x % 32;
    const bool signals = lane == 0;
    extern __shared__ __align__(128) float shared[];
    const int* outputs = all_outputs[threadIdx.x / 32 - WARPS];
    const uint32_t own_x = stages + 4 * (place.slice * S::BLOCK_M + place.column);
    const uint32_t own_w = stages + 4 * (S::X_FLOATS + place.slice * S::WIDTH + place.output);
    const bool in_registers = S::SLICES == 1 && problem.splits == 1 && problem.activation == NONE;
    Ring ring;
    for (int index = blockIdx.x / problem.splits; index < items; index += gridDim.x / problem.splits) {
        const Item<S> item(problem, index);
        const Range range(problem, item.tile, S::ROWS);
        const int steps = range.count / S::ROWS, tail = range.count % S::ROWS;
        __syncwarp();
        if (lane < 8)  // the rows of Y of this warp, which are needed at the end
            copy_16_bytes(shared_address(outputs + 4 * lane),
                          problem.outputs + item.tile * S::WIDTH + (place.output & ~31) + 4 * lane, 16);
        Sums<S> sums;
        Fragment<S> fragments[2];
        if (range.count > 0) barrier_wait(full + 8 * ring.slot, ring.phase);
        uint32_t x = own_x + ring.slot * S::STAGE_BYTES, w = own_w + ring.slot * S::STAGE_BYTES;
        fragments[0].load(w, x);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const Ring next = ring.next(problem.stages);
            const bool more = step + 1 < steps || tail;
            const int at = (more ? next.slot : ring.slot) * S::STAGE_BYTES;
#pragma unroll
            for (int i = 0; i < S::WARP_ROWS; ++i) {
                if (i + 3 == S::WARP_ROWS && more) barrier_wait(full + 8 * next.slot, next.phase);
                if (i + 1 < S::WARP_ROWS) {
                    fragments[(i + 1) % 2].load(w + (i + 1) * S::W_STEP, x + (i + 1) * S::X_STEP);
                } else {
                    x = own_x + at, w = own_w + at;
                    fragments[0].load(w, x);
                }
                sums.add_products(fragments[i % 2].w, fragments[i % 2].x);
            }
            if (signals) barrier_arrive(empty + 8 * ring.slot);
            ring = next;
        }
#pragma unroll 1
        for (int row = place.slice; row < tail; row += S::SLICES) {
            fragments[0].load(w, x);
            x += S::X_STEP, w += S::W_STEP;
            sums.add_products(fragments[0].w, fragments[0].x);
        }
        if (tail) {
            if (signals) barrier_arrive(empty + 8 * ring.slot);
            ring = ring.next(problem.stages);
        }
        wait_for_own_copies();
        __syncwarp();
        if (in_registers) {
            store_sums<S>(problem, place, item, outputs, sums);
        } else {
            add_up_and_store<S>(problem, place, item, outputs, shared, sums);
        }
    }
}

// Brings into L2 the list and the weights of the first stages of this block, before the kernels before this one have ended.
template <typename S>
__device__ __forceinline__ void prefetch_first_stages(const Problem& problem) {
    const Range range(problem, Item<S>(problem, blockIdx.x / problem.splits).tile, S::ROWS);
    const int count = min(range.count, STAGES_AHEAD * S::ROWS), line = threadIdx.x * 32;
    if (line < count) prefetch_line(problem.kept + range.first + line);
    if (threadIdx.x == 0 && count > 0) {
        prefetch_line(problem.kept + range.first + count - 1);
        prefetch_bulk(problem.panels + static_cast<long long>(range.first) * S::WIDTH, count * S::WIDTH * 4);
    }
}

// Warps fill the stages in turn, since the instructions around the copies of a stage take about as long as its products; a
// lane brings a row. There are at least as many stages as warps: parities tell only one round of the ring from the next.
template <typename S>
__device__ __forceinline__ void produce(const Problem& problem, int items, uint32_t stages, uint32_t full, uint32_t empty) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = min(WARPS, problem.stages);
    if (problem.kept_of_each && warp == 0) prefetch_first_stages<S>(problem);
    __syncwarp();
    wait_for_kernels_before();
    Ring ring{warp, 0};
    int step = warp;  // of the item; those before it were other warps'
    for (int index = blockIdx.x / problem.splits; index < items; index += gridDim.x / problem.splits) {
        const Item<S> item(problem, index);
        const Range range(problem, item.tile, S::ROWS);
        const int steps = (range.count + S::ROWS - 1) / S::ROWS;
        const int* list = problem.kept + range.first;
        const float* panel = problem.panels + static_cast<long long>(range.first) * S::WIDTH;
        const float* x = problem.x + item.column;
        const uint32_t row_bytes = min(S::BLOCK_M, problem.m - item.column) * 4;
        const auto input = [&](int of_step) {  // this lane's
            const int row = of_step * S::ROWS + lane;
            return lane < S::ROWS && row < range.count ? list[row] : -1;
        };
        int now = input(step), next = input(step + warps);
        for (; step < steps; step += warps) {
            const int following = input(step + 2 * warps);
            const int rows = min(S::ROWS, range.count - step * S::ROWS);
            const uint32_t target = stages + ring.slot * S::STAGE_BYTES, ready = full + 8 * ring.slot;
            barrier_wait_idly(empty + 8 * ring.slot, ring.phase ^ 1);
            if (lane == 0) {
                barrier_arrive_expect(ready, rows * (row_bytes + S::WIDTH * 4));
                copy_bulk(target + S::X_FLOATS * 4, panel + static_cast<long long>(step) * (S::ROWS * S::WIDTH),
                          rows * S::WIDTH * 4, ready);
            }
            __syncwarp();
            if (now >= 0) copy_bulk(target + lane * S::BLOCK_M * 4, x + now * problem.x_stride, row_bytes, ready);
            now = next, next = following;
            ring.slot += warps;
            if (ring.slot >= problem.stages) ring.slot -= problem.stages, ring.phase ^= 1;
        }
        step -= steps;
    }
}

template <typename S>
__global__ void __launch_bounds__(THREADS, S::BLOCKS_PER_SM) gathered_fp32_kernel(const __grid_constant__ Problem problem) {
    extern __shared__ __align__(128) float stages[];
    __shared__ uint64_t barriers[2 * MOST_STAGES];
    uint32_t full = shared_address(barriers);
    asm volatile("" : "+r"(full));  // kept rather than computed anew, which takes some ten instructions
    uint32_t address = shared_address(stages);
    asm volatile("" : "+r"(address));
    const uint32_t empty = full + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < problem.stages; ++slot) {
            barrier_init(full + 8 * slot, 1);
            barrier_init(empty + 8 * slot, WARPS);
        }
        fence_barrier_init();
    }
    __syncthreads();
    let_next_kernel_start();
    const int items = problem.tile_count * ((problem.m + S::BLOCK_M - 1) / S::BLOCK_M);
    if (threadIdx.x < CONSUMERS) {  // the schedulers prefer the oldest warps: those that load, which have little to do
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::PRODUCER_REGISTERS));
        if (threadIdx.x / 32 < problem.stages) produce<S>(problem, items, address, full, empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::CONSUMER_REGISTERS));
        wait_for_kernels_before();
        consume<S>(problem, items, address, full, empty);
    }
}

template <int WIDTH, int SLICES, int OUTPUTS, int COLUMNS>
cudaError_t launch(const Problem& problem, int processors, cudaStream_t stream) {
    using S = Shape<WIDTH, SLICES, OUTPUTS, COLUMNS>;
    const auto kernel = gathered_fp32_kernel<S>;
    const int stage_bytes = problem.stages * S::STAGE_BYTES, bytes = stage_bytes > S::SUMS_BYTES ? stage_bytes : S::SUMS_BYTES;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    long long blocks = 1ll * problem.tile_count * ((problem.m + S::BLOCK_M - 1) / S::BLOCK_M) * problem.splits;
    if (blocks >= 1ll << 31) return cudaErrorInvalidValue;
    // sums that are added up take the place of the stages, so that such blocks have one item each
    if (SLICES == 1 && problem.splits == 1 && problem.activation == NONE && blocks > processors * S::BLOCKS_PER_SM)
        blocks = processors * S::BLOCKS_PER_SM;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;  // set up while the kernel before this one ends
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned>(problem.splits), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = problem.splits > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes, alignment (16 bytes) and that m is a multiple of 4. Strides are in
// elements.
extern "C" int sparsefront_gathered_fp32(const void* x, const void* panels, const void* kept, const void* tiles,
                                         const void* outputs, const void* bias, const void* residual, void* y,
                                         long long x_stride, long long y_stride, long long residual_stride, int kept_of_each,
                                         int bias_type, int activation, int m, int k, int tile_count, int width, int slices, int columns,
                                         int stages, int splits, int processors, void* stream) {
    if (stages < 2 || stages > MOST_STAGES || splits < 1 || splits > 8) return cudaErrorInvalidValue;
    const Problem problem{static_cast<const float*>(x),
                          static_cast<const float*>(panels),
                          static_cast<const int*>(kept),
                          static_cast<const int2*>(tiles),
                          kept_of_each,
                          static_cast<const int*>(outputs),
                          bias,
                          static_cast<const float*>(residual),
                          static_cast<float*>(y),
                          x_stride,
                          y_stride,
                          residual_stride,
                          bias_type,
                          activation,
                          m,
                          k,
                          tile_count,
                          stages,
                          splits};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (width * 1000 + slices * 100 + columns) {
        case 32116: return launch<32, 1, 8, 16>(problem, processors, queue);
        case 32216: return launch<32, 2, 8, 16>(problem, processors, queue);
        case 32416: return launch<32, 4, 8, 16>(problem, processors, queue);
        case 32108: return launch<32, 1, 8, 8>(problem, processors, queue);
        case 32208: return launch<32, 2, 8, 8>(problem, processors, queue);
        case 32408: return launch<32, 4, 8, 8>(problem, processors, queue);
        case 64116: return launch<64, 1, 8, 16>(problem, processors, queue);
        case 64216: return launch<64, 2, 8, 16>(problem, processors, queue);
        case 64108: return launch<64, 1, 8, 8>(problem, processors, queue);
        case 64208: return launch<64, 2, 8, 8>(problem, processors, queue);
        case 128116: return launch<128, 1, 8, 16>(problem, processors, queue);
        case 128108: return launch<128, 1, 8, 8>(problem, processors, queue);
        default: return cudaErrorInvalidValue;
    }
}
