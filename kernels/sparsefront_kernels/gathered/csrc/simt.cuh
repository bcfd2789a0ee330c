// What a thread of the float32 kernel adds up: operands from shared memory, sums in registers, and their way to Y.
#pragma once

#include "../../cuda/hopper.cuh"
#include "../../cuda/numbers.cuh"

namespace {

// What the float32 kernel is given and how it is cut: the problem, the shape of a block, the work tile of a block and its
// kept inputs, the ring of stages.
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

template <int WIDTH_, int WARP_SPLIT_K_, int OUTPUTS_, int COLUMNS_>
struct Shape {
    static constexpr int WIDTH = WIDTH_, WARP_SPLIT_K = WARP_SPLIT_K_, OUTPUTS = OUTPUTS_, COLUMNS = COLUMNS_;
    static constexpr int LANES_ALONG_N = 32 / OUTPUTS, LANES_ALONG_M = OUTPUTS;
    static constexpr int OUTPUT_STRIDE = 4 * LANES_ALONG_N, COLUMN_STRIDE = 4 * LANES_ALONG_M;  // of a thread's groups of 4
    static constexpr int WARPS_ALONG_N = WIDTH / 32;
    static constexpr int WARPS_ALONG_M = WARPS / (WARPS_ALONG_N * WARP_SPLIT_K);
    static constexpr int WARP_M = LANES_ALONG_M * COLUMNS;
    static constexpr int BLOCK_M = WARPS_ALONG_M * WARP_M;
    static constexpr int WARP_ROWS = 8;
    static constexpr int ROWS = WARP_ROWS * WARP_SPLIT_K;  // kept inputs of a stage
    static constexpr int X_FLOATS = ROWS * BLOCK_M;
    static constexpr int STAGE_BYTES = ROWS * (BLOCK_M + WIDTH) * 4;
    static constexpr int X_STEP = WARP_SPLIT_K * BLOCK_M * 4, W_STEP = WARP_SPLIT_K * WIDTH * 4;  // bytes to a warp's next input
    static constexpr int SUMS_BYTES = CONSUMERS * OUTPUTS * COLUMNS * 4;
    static constexpr int BLOCKS_PER_SM = COLUMNS == 8 && WARP_SPLIT_K == 1 ? 3 : 2;
    // Registers of a thread that multiplies and of one that loads: together twice what a thread starts with.
    static constexpr int CONSUMER_REGISTERS = BLOCKS_PER_SM == 2 ? 224 : 128;
    static constexpr int PRODUCER_REGISTERS = 32;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static constexpr int LEAST_BLOCKS = BLOCKS_PER_SM;
#else  // every thread keeps the registers with which it starts
    static constexpr int LEAST_BLOCKS = COLUMNS == 8 ? 2 : 1;
#endif
};

template <int COUNT>
__device__ __forceinline__ void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

template <int COUNT>
__device__ __forceinline__ void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// The kept inputs that fall to this block: `count` of them from `first` on.
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int tile, int rows) {
        int2 all = make_int2(tile * problem.kept_of_each, problem.kept_of_each);
        if (problem.kept_of_each == 0) all = problem.tiles[tile];  // one trip to memory more before the first row of X
        const int k_blocks = (all.y + rows - 1) / rows, rank = rank_in_cluster();
        const int begin = k_blocks * rank / problem.splits * rows;
        const int end = min(k_blocks * (rank + 1) / problem.splits * rows, all.y);
        first = all.x + begin, count = max(end - begin, 0);
    }
};

// Work tile number `index`: all tiles of a block of columns are neighbors, since they share rows of X in L2.
template <typename S>
struct WorkTile {
    int tile, column;

    __device__ __forceinline__ WorkTile(const Problem& problem, int index)
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

// How the float32 kernels begin: barriers of the ring, warps that load and warps that multiply, and the launch.
// Runs `produce` in the first four warps and `consume` in the other four, each with (stages in shared memory, barriers of full
// stages, of empty ones), once the ring of `count` stages is set up.
template <typename S, typename Produce, typename Consume>
__device__ __forceinline__ void run_warps(int count, const Produce& produce, const Consume& consume) {
    extern __shared__ __align__(128) float stages[];
    __shared__ uint64_t barriers[2 * MOST_STAGES];
    uint32_t full = shared_address(barriers);
    asm volatile("" : "+r"(full));  // kept rather than computed anew, which takes some ten instructions
    uint32_t address = shared_address(stages);
    asm volatile("" : "+r"(address));
    const uint32_t empty = full + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < count; ++slot) {
            barrier_init(full + 8 * slot, 1);
            barrier_init(empty + 8 * slot, WARPS);
        }
        fence_barrier_init();
    }
    __syncthreads();
    pdl_launch_dependents();
    if (threadIdx.x < CONSUMERS) {  // the schedulers prefer the oldest warps: those that load, which have little to do
        give_registers<S::PRODUCER_REGISTERS>();
        if (threadIdx.x / 32 < count) produce(address, full, empty);
#ifdef BEFORE_HOPPER
        wait_for_own_copies();  // no thread ends before its copies
#endif
    } else {
        take_registers<S::CONSUMER_REGISTERS>();
        pdl_wait();
        consume(address, full, empty);
    }
}

// Launches a kernel on so many tiles as its blocks compute, with stages of `stage_bytes`. P: the kernel's problem.
template <typename S, typename P>
cudaError_t launch_kernel(void (*kernel)(P), const P& problem, int stage_bytes, int num_sms, cudaStream_t stream) {
    const int bytes = max(problem.stages * stage_bytes, S::SUMS_BYTES);
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    long long blocks = 1ll * problem.tile_count * ((problem.m + S::BLOCK_M - 1) / S::BLOCK_M) * problem.splits;
    if (blocks >= 1ll << 31) return cudaErrorInvalidValue;
    // sums that are added up take the place of the stages, so that such blocks have one work tile each
    if (S::WARP_SPLIT_K == 1 && problem.splits == 1 && problem.activation == NONE && blocks > num_sms * S::BLOCKS_PER_SM)
        blocks = num_sms * S::BLOCKS_PER_SM;
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
    config.numAttrs = problem.splits > 1 ? 2 : has_pdl();
    return cudaLaunchKernelEx(&config, kernel, problem);
}

// Where a thread's sums belong: groups of 4 outputs of the tile and of 4 columns of the block.
template <typename S>
struct Place {
    int output, column;  // the first
    int k_slice;
    int position;  // among the threads of a k-slice

    __device__ __forceinline__ Place() {
        const int warp = threadIdx.x / 32 - WARPS, lane = threadIdx.x % 32;
        output = warp % S::WARPS_ALONG_N * 32 + lane / S::LANES_ALONG_M * 4;
        column = warp / S::WARPS_ALONG_N % S::WARPS_ALONG_M * S::WARP_M + lane % S::LANES_ALONG_M * 4;
        k_slice = warp / (S::WARPS_ALONG_N * S::WARPS_ALONG_M);
        position = threadIdx.x % (CONSUMERS / S::WARP_SPLIT_K);
    }

    // The thread's output number n, among the 32 of its warp.
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

    // += weights · elements. Neighboring rows go through the columns in opposite directions: the element where they turn
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

    // Columns m to m + 3 of output n; m is a multiple of 4.
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

// Writes four neighboring columns of an output.
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
__device__ __forceinline__ void store_sums(const Problem& problem, const Place<S>& place, const WorkTile<S>& work_tile,
                                           const int* outputs, const Sums<S>& sums) {
#pragma unroll
    for (int n = 0; n < S::OUTPUTS; ++n) {
        const int output = outputs[place.output_of(n)];
        const float bias = output >= 0 ? bias_at(problem.bias, problem.bias_type, output) : 0.0f;
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 4; ++i) {
            const float4 v = sums.four(n, 4 * i);
            store(problem, output, work_tile.column + place.column + S::COLUMN_STRIDE * i,
                  make_float4(v.x + bias, v.y + bias, v.z + bias, v.w + bias));
        }
    }
}

__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// Adds up what the k-slices hold, and then the blocks of the cluster, in shared memory that the stages no longer need; each
// k-slice of each block finishes its share.
template <typename S>
__device__ __forceinline__ void add_up_and_store(const Problem& problem, const Place<S>& place, const WorkTile<S>& work_tile,
                                                 const int* outputs, float* shared, const Sums<S>& sums) {
    constexpr int GROUPS = S::COLUMNS / 4, PARTS = S::OUTPUTS * GROUPS;  // of 4 columns
    constexpr int POSITIONS = CONSUMERS / S::WARP_SPLIT_K;
    float4* all = reinterpret_cast<float4*>(shared);  // [k_slices, parts, positions]
    consumers_sync();                                  // all have read all stages
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        all[(place.k_slice * PARTS + part) * POSITIONS + place.position] = sums.four(part / GROUPS, part % GROUPS * 4);
    consumers_sync();
    const auto sum_of_k_slices = [&](int part) {
        float4 v = all[part * POSITIONS + place.position];
#pragma unroll
        for (int k_slice = 1; k_slice < S::WARP_SPLIT_K; ++k_slice) {
            const float4 other = all[(k_slice * PARTS + part) * POSITIONS + place.position];
            v.x += other.x, v.y += other.y, v.z += other.z, v.w += other.w;
        }
        return v;
    };
    if (problem.splits > 1) {
        for (int part = place.k_slice; S::WARP_SPLIT_K > 1 && part < PARTS; part += S::WARP_SPLIT_K)
            all[part * POSITIONS + place.position] = sum_of_k_slices(part);
        cluster_sync();
    }
#pragma unroll 1
    for (int part = rank_in_cluster() * S::WARP_SPLIT_K + place.k_slice; part < PARTS; part += problem.splits * S::WARP_SPLIT_K) {
        float4 v;
        if (problem.splits == 1) {
            v = sum_of_k_slices(part);
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
        store(problem, output, work_tile.column + place.column + part % GROUPS * S::COLUMN_STRIDE, v);
    }
    if (problem.splits > 1) cluster_sync_relaxed();  // no block ends while another reads its memory
}

}  // namespace
