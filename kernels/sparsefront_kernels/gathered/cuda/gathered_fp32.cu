// Y[N, M] = activation(W[N, K] · X[K, M] + bias[N]) + residual for a gathered weight on Hopper's CUDA cores (sm_90a), in
// float32 throughout, feature-major.
//
// A block of the grid computes one tile of 32, 64 or 128 outputs, which share their kept inputs, times BLOCK_M columns. One
// warp loads: a kept input is one bulk copy of BLOCK_M contiguous elements of X, and the weights of a stage are one more.
// Four warps multiply, each 32 outputs x 8 · COLUMNS columns, a thread 8 outputs x COLUMNS columns in registers. Where the
// columns of a block need fewer warps than four, SLICES of them share the inputs of a stage, and where the grid is small,
// `splits` blocks of a cluster share the inputs of a tile; both add up through shared memory in a fixed order.
// Hierarchical blocking and double buffering: "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU",
// 2025. See ../README.md.
#include "epilogue_math.cuh"
#include "hopper.cuh"

namespace {

constexpr int WARPS = 4;  // that multiply
constexpr int CONSUMERS = 32 * WARPS;
constexpr int THREADS = 2 * CONSUMERS;  // registers are moved between groups of four warps: one of the other four loads
constexpr int MOST_STAGES = 16;
constexpr int LISTS_AHEAD = 4;  // stages whose lists of inputs are fetched early
constexpr int UNROLL = 4;       // inputs whose products are straight-line code; even, since fragments alternate

struct Problem {
    const float* x;        // [K, m], rows `x_stride` elements apart
    const float* panels;   // [kept inputs of all tiles, outputs of a tile]
    const int* kept;       // the kept inputs of all tiles
    const int2* tiles;     // first kept input, number of kept inputs
    const int* outputs;    // [tiles, outputs of a tile]: row of Y, or -1
    const void* bias;
    const float* residual;  // as y, or null
    float* y;              // [N, m], rows `y_stride` elements apart
    long long x_stride, y_stride, residual_stride;
    int bias_type;
    int activation;
    int m;
    int tile_count;
    int stages;
    int splits;
};

template <int WIDTH_, int SLICES_, int COLUMNS_>
struct Shape {
    static constexpr int WIDTH = WIDTH_, SLICES = SLICES_, COLUMNS = COLUMNS_;
    static constexpr int WARPS_ALONG_N = WIDTH / 32;
    static constexpr int WARPS_ALONG_M = WARPS / (WARPS_ALONG_N * SLICES);
    static constexpr int WARP_M = 8 * COLUMNS;
    static constexpr int BLOCK_M = WARPS_ALONG_M * WARP_M;
    static constexpr int ROWS = SLICES == 1 ? (BLOCK_M >= 512 ? 8 : 16) : 32;  // kept inputs of a stage
    static constexpr int WARP_ROWS = ROWS / SLICES;
    static constexpr int X_FLOATS = ROWS * BLOCK_M;
    static constexpr int STAGE_FLOATS = ROWS * (BLOCK_M + WIDTH);
    static constexpr int SUMS_BYTES = CONSUMERS * 8 * COLUMNS * 4;
    static constexpr int BLOCKS_PER_SM = COLUMNS == 16 ? 2 : 3;
    // Registers of a thread that multiplies and of one that loads: together twice what a thread starts with.
    static constexpr int CONSUMER_REGISTERS = COLUMNS == 16 ? 216 : 120;
    static constexpr int PRODUCER_REGISTERS = 40;
    static_assert(WARP_ROWS % UNROLL == 0 && ROWS <= 32);
};

// The kept inputs that fall to this block: `count` of them from `first` on.
struct Range {
    int first, count;

    __device__ __forceinline__ Range(const Problem& problem, int tile, int rows) {
        const int2 all = problem.tiles[tile];
        const int steps = (all.y + rows - 1) / rows, rank = rank_in_cluster();
        const int begin = steps * rank / problem.splits * rows;
        const int end = min(steps * (rank + 1) / problem.splits * rows, all.y);
        first = all.x + begin, count = max(end - begin, 0);
    }
};

// Where a thread's sums belong. Lanes that share outputs or columns are paired so that 16-byte reads of half a warp merge.
template <typename S>
struct Place {
    int output;  // first of 4 + 4 of the tile: the others are 16 further
    int column;  // first of groups of 4 of the block, 32 apart
    int slice;
    int position;  // among the threads of a slice

    __device__ __forceinline__ Place() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        output = warp % S::WARPS_ALONG_N * 32 + ((lane & 1) | (lane >> 4 << 1)) * 4;
        column = warp / S::WARPS_ALONG_N % S::WARPS_ALONG_M * S::WARP_M + (lane >> 1 & 7) * 4;
        slice = warp / (S::WARPS_ALONG_N * S::WARPS_ALONG_M);
        position = threadIdx.x % (CONSUMERS / S::SLICES);
    }
};

// What a thread multiplies for one kept input.
template <int COLUMNS>
struct Fragment {
    float w[8], x[COLUMNS];

    __device__ __forceinline__ void load(const float* weights, const float* row) {
        *reinterpret_cast<float4*>(w) = *reinterpret_cast<const float4*>(weights);
        *reinterpret_cast<float4*>(w + 4) = *reinterpret_cast<const float4*>(weights + 16);
#pragma unroll
        for (int i = 0; i < COLUMNS / 4; ++i)
            *reinterpret_cast<float4*>(x + 4 * i) = *reinterpret_cast<const float4*>(row + 32 * i);
    }

    __device__ __forceinline__ void multiply(float (&acc)[8][COLUMNS]) const {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int m = 0; m < COLUMNS; ++m) acc[n][m] = fmaf(w[n], x[m], acc[n][m]);
        }
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
__device__ __forceinline__ void store_sums(const Problem& problem, const Place<S>& place, const int* outputs, int column,
                                           const float (&acc)[8][S::COLUMNS]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int output = outputs[place.output + n / 4 * 16 + n % 4];
        const float bias = output >= 0 ? bias_at(problem.bias, problem.bias_type, output) : 0.0f;
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 4; ++i) {
            const float* d = acc[n] + 4 * i;
            store(problem, output, column + place.column + 32 * i,
                  make_float4(d[0] + bias, d[1] + bias, d[2] + bias, d[3] + bias));
        }
    }
}

// Adds up what the slices of all blocks of the cluster hold, in shared memory that the stages no longer need; each slice of
// each block finishes its share.
template <typename S>
__device__ __forceinline__ void add_up_and_store(const Problem& problem, const Place<S>& place, const int* outputs, int column,
                                                 float* shared, const float (&acc)[8][S::COLUMNS]) {
    constexpr int GROUPS = S::COLUMNS / 4, PARTS = 8 * GROUPS;  // of 4 columns
    constexpr int POSITIONS = CONSUMERS / S::SLICES;
    float4* sums = reinterpret_cast<float4*>(shared);  // [slices, parts, positions]
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");  // all have read all stages
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const float* d = acc[part / GROUPS] + part % GROUPS * 4;
        sums[(place.slice * PARTS + part) * POSITIONS + place.position] = make_float4(d[0], d[1], d[2], d[3]);
    }
    cluster_sync();
    const uint32_t mine = shared_address(sums + place.position);
#pragma unroll 1
    for (int part = rank_in_cluster() * S::SLICES + place.slice; part < PARTS; part += problem.splits * S::SLICES) {
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int rank = 0; rank < problem.splits; ++rank) {
#pragma unroll
            for (int slice = 0; slice < S::SLICES; ++slice) {
                const float4 other = load_from_cluster(mine + (slice * PARTS + part) * POSITIONS * 16, rank);
                v.x += other.x, v.y += other.y, v.z += other.z, v.w += other.w;
            }
        }
        const int n = part / GROUPS, output = outputs[place.output + n / 4 * 16 + n % 4];
        const float bias = output >= 0 ? bias_at(problem.bias, problem.bias_type, output) : 0.0f;
        v = make_float4(activated(v.x + bias, problem.activation), activated(v.y + bias, problem.activation),
                        activated(v.z + bias, problem.activation), activated(v.w + bias, problem.activation));
        store(problem, output, column + place.column + part % GROUPS * 32, v);
    }
    cluster_sync();  // nobody ends while another reads
}

template <typename S>
__device__ __forceinline__ void consume(const Problem& problem, int tile, int column, float* stages, uint32_t full,
                                        uint32_t empty) {
    const Range range(problem, tile, S::ROWS);
    const Place<S> place;
    const bool signals = threadIdx.x % 32 == 0;
    const int steps = range.count / S::ROWS, tail = range.count % S::ROWS;
    const float* own_x = stages + place.slice * S::BLOCK_M + place.column;
    const float* own_w = stages + S::X_FLOATS + place.slice * S::WIDTH + place.output;
    float acc[8][S::COLUMNS] = {};
    Fragment<S::COLUMNS> fragments[2];
    int slot = 0;
    uint32_t phase = 0;
    if (range.count > 0) barrier_wait(full, 0);
    fragments[0].load(own_w, own_x);
    const float *x = own_x, *w = own_w;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const bool wraps = slot + 1 == problem.stages;
        const int next_slot = wraps ? 0 : slot + 1;
        const uint32_t next_phase = phase ^ wraps;
#pragma unroll 1
        for (int done = 0; done < S::WARP_ROWS; done += UNROLL) {
#pragma unroll
            for (int i = 0; i < UNROLL; ++i) {
                if (i + 1 < UNROLL) {
                    fragments[(i + 1) % 2].load(w + (i + 1) * S::SLICES * S::WIDTH, x + (i + 1) * S::SLICES * S::BLOCK_M);
                } else {
                    x += UNROLL * S::SLICES * S::BLOCK_M, w += UNROLL * S::SLICES * S::WIDTH;
                    if (done + UNROLL == S::WARP_ROWS) {
                        const bool more = step + 1 < steps || tail;
                        if (more) barrier_wait(full + 8 * next_slot, next_phase);
                        const int at = (more ? next_slot : slot) * S::STAGE_FLOATS;
                        x = own_x + at, w = own_w + at;
                    }
                    fragments[0].load(w, x);
                }
                fragments[i % 2].multiply(acc);
            }
        }
        if (signals) barrier_arrive(empty + 8 * slot);
        slot = next_slot, phase = next_phase;
    }
#pragma unroll 1
    for (int row = place.slice; row < tail; row += S::SLICES) {
        fragments[0].load(w, x);
        x += S::SLICES * S::BLOCK_M, w += S::SLICES * S::WIDTH;
        fragments[0].multiply(acc);
    }
    const int* outputs = problem.outputs + tile * S::WIDTH;
    if (S::SLICES == 1 && problem.splits == 1 && problem.activation == NONE) {
        store_sums<S>(problem, place, outputs, column, acc);
    } else {
        add_up_and_store<S>(problem, place, outputs, column, stages, acc);
    }
}

// One warp; lane r brings row r of a stage.
template <typename S>
__device__ __forceinline__ void produce(const Problem& problem, int tile, int column, uint32_t stages, uint32_t full,
                                        uint32_t empty) {
    const Range range(problem, tile, S::ROWS);
    const int lane = threadIdx.x % 32;
    const int* list = problem.kept + range.first;
    const float* panel = problem.panels + static_cast<long long>(range.first) * S::WIDTH;
    const float* x = problem.x + column;
    const uint32_t row_bytes = min(S::BLOCK_M, problem.m - column) * 4;
    const auto input = [&](int begin) {  // this lane's in the stage that begins at kept input `begin`
        const int row = begin + lane;
        return lane < S::ROWS && row < range.count ? list[row] : -1;
    };
    int inputs[LISTS_AHEAD];
#pragma unroll
    for (int i = 0; i < LISTS_AHEAD; ++i) inputs[i] = input(i * S::ROWS);
    int slot = 0;
    uint32_t phase = 0;
    for (int begin = 0; begin < range.count;) {
        int following[LISTS_AHEAD];
#pragma unroll
        for (int i = 0; i < LISTS_AHEAD; ++i) following[i] = input(begin + (LISTS_AHEAD + i) * S::ROWS);
#pragma unroll
        for (int i = 0; i < LISTS_AHEAD; ++i, begin += S::ROWS) {
            if (begin >= range.count) break;
            const uint32_t rows = min(S::ROWS, range.count - begin);
            const uint32_t target = stages + slot * S::STAGE_FLOATS * 4, ready = full + 8 * slot;
            barrier_wait(empty + 8 * slot, phase ^ 1);
            if (lane == 0) {
                barrier_arrive_expect(ready, rows * (row_bytes + S::WIDTH * 4));
                copy_bulk(target + S::X_FLOATS * 4, panel + static_cast<long long>(begin) * S::WIDTH, rows * S::WIDTH * 4,
                          ready);
            }
            __syncwarp();
            if (inputs[i] >= 0) copy_bulk(target + lane * S::BLOCK_M * 4, x + inputs[i] * problem.x_stride, row_bytes, ready);
            if (++slot == problem.stages) slot = 0, phase ^= 1;
        }
#pragma unroll
        for (int i = 0; i < LISTS_AHEAD; ++i) inputs[i] = following[i];
    }
}

template <typename S>
__global__ void __launch_bounds__(THREADS, S::BLOCKS_PER_SM) gathered_fp32_kernel(const __grid_constant__ Problem problem) {
    extern __shared__ __align__(128) float stages[];
    __shared__ uint64_t barriers[2 * MOST_STAGES];
    const uint32_t full = shared_address(barriers), empty = full + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < problem.stages; ++slot) {
            barrier_init(full + 8 * slot, 1);
            barrier_init(empty + 8 * slot, WARPS);
        }
        fence_barrier_init();
    }
    __syncthreads();
    wait_for_kernels_before();
    let_next_kernel_start();
    const int item = blockIdx.x / problem.splits;  // all tiles of a block column are neighbours: they share rows of X in L2
    const int tile = item % problem.tile_count, column = item / problem.tile_count * S::BLOCK_M;
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::CONSUMER_REGISTERS));
        consume<S>(problem, tile, column, stages, full, empty);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::PRODUCER_REGISTERS));
        if (threadIdx.x < CONSUMERS + 32) produce<S>(problem, tile, column, shared_address(stages), full, empty);
    }
}

template <int WIDTH, int SLICES, int COLUMNS>
cudaError_t launch(const Problem& problem, cudaStream_t stream) {
    using S = Shape<WIDTH, SLICES, COLUMNS>;
    const auto kernel = gathered_fp32_kernel<S>;
    const int stage_bytes = problem.stages * S::STAGE_FLOATS * 4, bytes = stage_bytes > S::SUMS_BYTES ? stage_bytes : S::SUMS_BYTES;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    const long long blocks = 1ll * problem.tile_count * ((problem.m + S::BLOCK_M - 1) / S::BLOCK_M) * problem.splits;
    if (blocks >= 1ll << 31) return cudaErrorInvalidValue;
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
                                         long long x_stride, long long y_stride, long long residual_stride, int bias_type,
                                         int activation, int m, int tile_count, int width, int slices, int columns,
                                         int stages, int splits, void* stream) {
    if (stages < 2 || stages > MOST_STAGES || splits < 1 || splits > 8) return cudaErrorInvalidValue;
    const Problem problem{static_cast<const float*>(x),
                          static_cast<const float*>(panels),
                          static_cast<const int*>(kept),
                          static_cast<const int2*>(tiles),
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
                          tile_count,
                          stages,
                          splits};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (width * 1000 + slices * 100 + columns) {
        case 32116: return launch<32, 1, 16>(problem, queue);
        case 32216: return launch<32, 2, 16>(problem, queue);
        case 32416: return launch<32, 4, 16>(problem, queue);
        case 32108: return launch<32, 1, 8>(problem, queue);
        case 32208: return launch<32, 2, 8>(problem, queue);
        case 32408: return launch<32, 4, 8>(problem, queue);
        case 64116: return launch<64, 1, 16>(problem, queue);
        case 64216: return launch<64, 2, 16>(problem, queue);
        case 64108: return launch<64, 1, 8>(problem, queue);
        case 64208: return launch<64, 2, 8>(problem, queue);
        case 128116: return launch<128, 1, 16>(problem, queue);
        case 128108: return launch<128, 1, 8>(problem, queue);
        default: return cudaErrorInvalidValue;
    }
}
