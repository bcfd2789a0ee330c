// LayerNorm of the columns of a feature-major 16-bit matrix: y = (s - mean) / sqrt(variance + eps) * weight + bias, with s =
// x + x_bias + residual, rounded. Everything is read once and accumulated in float32.
//
// The CTAs of a cluster share the features of a tile of columns, and iterate over tiles. Each thread copies its own 16 bytes of a
// row into a ring in shared memory, many slots ahead, so that memory is busy during the sums; it alone reads them, so the ring
// needs no barrier. The columns of a tile are in registers. Sums of squares are around the mean of a warp's features and are
// then shifted to the mean of all: one exchange yields both. norm/layer_norm.py names the divisions.

#include <atomic>

#include "../../cuda/hopper.cuh"
#include "../../cuda/numbers.cuh"

namespace column_norm {

// Sum of a column over some features, and sum of squares around their mean.
struct Moments {
    float sum, squares;
};

// Number of features and its inverse, which is 0 for none.
struct Count {
    float features, inverse;
};

__device__ __forceinline__ Count counted(float features) { return {features, features > 0.0f ? 1.0f / features : 0.0f}; }

// Moments of the union of several sets of features. at(i), count(i): moments and size of set i; of_all: size of the union.
template <int SETS, typename At, typename OfSet>
__device__ __forceinline__ Moments combined(At at, OfSet count, Count of_all) {
    Moments all{0.0f, 0.0f};
#pragma unroll 4
    for (int i = 0; i < SETS; ++i) all.sum += at(i).sum;
    const float mean = all.sum * of_all.inverse;
#pragma unroll 4
    for (int i = 0; i < SETS; ++i) {
        const Moments part = at(i);
        const float away = part.sum * count(i).inverse - mean;
        all.squares += part.squares + count(i).features * away * away;
    }
    return all;
}

// Stores to the shared memory of another CTA of the cluster, at the offset of `own`.
__device__ __forceinline__ void store_moments(const Moments* own, int rank, Moments v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address_in_cluster(shared_address(own), rank)), "f"(v.sum),
                 "f"(v.squares)
                 : "memory");
}

// Sum over the lanes of a warp that have the same columns, returned to all of them.
template <int EIGHTS, int COUNT>
__device__ __forceinline__ void add_over_rows(float (&v)[COUNT]) {
#pragma unroll
    for (int step = EIGHTS; step < 32; step *= 2)
#pragma unroll
        for (float& of_column : v) of_column += __shfl_xor_sync(~0u, of_column, step);
}

// Same field order as in norm/layer_norm.py.
struct Arguments {
    const void* x;         // [d, m], rows `x_stride` elements apart
    const void* residual;  // likewise, or null
    const void* x_bias;    // [d]; types as `bias_at` has them
    const void* weight;
    const void* bias;
    void* sums;            // [d, m], contiguous, or null
    void* y;               // [d, m], contiguous
    long long x_stride, residual_stride;
    int x_bias_type, weight_type, bias_type, is_bfloat16;
    int d, m;              // m is a multiple of 8
    int cluster, columns, threads;  // the division
    int pdl;
    float eps;
};

constexpr int EIGHT = 8;  // columns per thread: 16 bytes of a row

// Division of the work. VECTORS: rows of a tile per thread; SLOTS: of the ring, each with a row of every operand; BLOCKS: minimum
// per SM.
template <typename T, int CLUSTER_, int COLUMNS_, int THREADS_, int VECTORS_, int SLOTS_, int BLOCKS_, bool RESIDUAL_>
struct Shape {
    using Type = T;
    static constexpr int CLUSTER = CLUSTER_, COLUMNS = COLUMNS_, THREADS = THREADS_, VECTORS = VECTORS_, SLOTS = SLOTS_, BLOCKS = BLOCKS_;
    static constexpr bool RESIDUAL = RESIDUAL_;
    static constexpr int WARPS = THREADS / 32;
    static constexpr int EIGHTS = COLUMNS / EIGHT;    // threads per row
    static constexpr int ROWS = THREADS / EIGHTS;     // rows per CTA at once
    static constexpr int FEATURES = ROWS * VECTORS;   // maximum per CTA
    static constexpr int SLOT_BYTES = THREADS * 16, OPERANDS = RESIDUAL ? 2 : 1;
    static_assert(EIGHTS <= 32 && THREADS >= COLUMNS && THREADS % 32 == 0);
};

template <typename S>
struct Memory {
    alignas(16) uint8_t ring[S::SLOTS * S::OPERANDS * S::SLOT_BYTES];
    alignas(16) Moments of_warps[S::WARPS][S::COLUMNS];
    alignas(16) Moments of_blocks[2][S::CLUSTER][S::COLUMNS];  // [this tile or the next][rank][column]
    alignas(16) float scale[S::COLUMNS];
    alignas(16) float shift[S::COLUMNS];
    Count warp_counts[S::WARPS], block_counts[S::CLUSTER];
    float2 affine[S::FEATURES];  // weight and bias
    float x_bias[S::RESIDUAL ? S::FEATURES : 1];
};

__device__ __forceinline__ char* kept(char* v) { return const_cast<char*>(::kept(static_cast<const char*>(v))); }
using ::kept;

// Copies of a thread's rows, tile after tile, into its ring. Holds the source of the next copy: an address per row of a tile would
// need too many registers.
template <typename S>
struct Copies {
    const char *x, *residual;
    long long x_step, residual_step;  // bytes between consecutive rows of a thread
    int column, m;

    __device__ __forceinline__ Copies(const Arguments& problem, int row, int tile, int first_column)
        : x_step(2 * S::ROWS * problem.x_stride), residual_step(2 * S::ROWS * problem.residual_stride),
          column(tile * S::COLUMNS + first_column), m(problem.m) {
        x = static_cast<const char*>(problem.x) + 2 * (row * problem.x_stride + column);
        residual = static_cast<const char*>(problem.residual) + 2 * (row * problem.residual_stride + column);
    }

    // One copy group per slot, also if it is empty, so that groups can be counted.
    __device__ __forceinline__ void start(uint32_t slot, bool exists) const {
        if (exists && column < m) {
            copy_16_bytes(slot, x, 16);
            if constexpr (S::RESIDUAL) copy_16_bytes(slot + S::SLOT_BYTES, residual, 16);
        }
        ::commit_copies();
    }

    __device__ __forceinline__ void advance(bool last_of_tile, int clusters) {
        x = kept(x + x_step);
        if constexpr (S::RESIDUAL) residual = kept(residual + residual_step);
        if (last_of_tile) {
            const int columns = S::COLUMNS * clusters;
            column += columns;
            x = kept(x + 2 * columns - S::VECTORS * x_step);
            if constexpr (S::RESIDUAL) residual = kept(residual + 2 * columns - S::VECTORS * residual_step);
        }
    }
};

// Keeps packed words: if the compiler knew that they are equal, it would keep the widened values, for which there are not enough
// registers. zero: 0 at run time, unknown to the compiler.
__device__ __forceinline__ void keep_words(uint4& words, uint32_t zero) {
    words.x ^= zero, words.y ^= zero, words.z ^= zero, words.w ^= zero;
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) layer_norm_columns_kernel(const __grid_constant__ Arguments problem) {
    using T = typename S::Type;
    extern __shared__ __align__(128) uint8_t dynamic[];
    Memory<S>& memory = *reinterpret_cast<Memory<S>*>(dynamic);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = threadIdx.x / S::EIGHTS, first_column = threadIdx.x % S::EIGHTS * EIGHT;
    const int rank = S::CLUSTER == 1 ? 0 : rank_in_cluster();
    const int d = problem.d, m = problem.m;
    const int part = (d + S::CLUSTER - 1) / S::CLUSTER, begin = rank * part;  // features per CTA, and the first of this one
    const int features = max(0, min(part, d - begin));
    const int tiles = (m + S::COLUMNS - 1) / S::COLUMNS, clusters = gridDim.x / S::CLUSTER;
    const int first_tile = blockIdx.x / S::CLUSTER;

    // This thread owns rows first, first + ROWS, … of each tile.
    const int vectors = max(0, min(S::VECTORS, (features - first + S::ROWS - 1) / S::ROWS));
    Copies<S> copies(problem, begin + first, first_tile, first_column);

    if constexpr (S::CLUSTER > 1) cluster_sync_relaxed();  // all CTAs have started before others write to their memory
    pdl_wait();  // parameters may come from the preceding kernel too
    pdl_launch_dependents();
    const uint32_t ring = shared_address(memory.ring) + threadIdx.x * 16;
    constexpr uint32_t STEP = S::OPERANDS * S::SLOT_BYTES;
#pragma unroll
    for (int slot = 0; slot < S::SLOTS; ++slot) {
        copies.start(ring + slot * STEP, slot % S::VECTORS < vectors);
        copies.advance((slot + 1) % S::VECTORS == 0, clusters);
    }
#pragma unroll 2
    for (int i = threadIdx.x; i < S::FEATURES; i += S::THREADS) {
        const bool some = i < features;
        memory.affine[i].x = some && problem.weight_type != 0 ? bias_at(problem.weight, problem.weight_type, begin + i) : 1.0f;
        memory.affine[i].y = some ? bias_at(problem.bias, problem.bias_type, begin + i) : 0.0f;
        if constexpr (S::RESIDUAL) memory.x_bias[i] = some ? bias_at(problem.x_bias, problem.x_bias_type, begin + i) : 0.0f;
    }
    float of_warp = 0.0f;  // features
#pragma unroll
    for (int v = 0; v < S::VECTORS; ++v) of_warp += v < vectors ? 1.0f : 0.0f;
#pragma unroll
    for (int step = S::EIGHTS; step < 32; step *= 2) of_warp += __shfl_xor_sync(~0u, of_warp, step);
    const Count warp_count = counted(of_warp), block_count = counted(features), count = counted(d);
    if (lane == 0) memory.warp_counts[warp] = warp_count;
    if (threadIdx.x < S::CLUSTER) memory.block_counts[threadIdx.x] = counted(max(0, min(part, d - static_cast<int>(threadIdx.x) * part)));
    __syncthreads();

    const long long result_step = 2LL * S::ROWS * m;  // bytes between consecutive rows of a thread
    const uint32_t zero = reinterpret_cast<uint64_t>(problem.y) % 16;  // see keep_words; y begins at a multiple
    uint32_t slot = ring;
    int parity = 0;
#pragma unroll 1
    for (int tile = first_tile; tile < tiles; tile += clusters, parity ^= 1) {
        const int column = tile * S::COLUMNS + first_column;
        const long long place = 2 * (static_cast<long long>(begin + first) * m + column);  // byte offset in the results
        char* sums = static_cast<char*>(problem.sums) + place;
        uint4 held[S::VECTORS];
        float sum[EIGHT] = {}, squares[EIGHT] = {}, v[EIGHT];
#pragma unroll
        for (int i = 0; i < S::VECTORS; ++i) {
            ::wait_for_copies<S::SLOTS - 1>();
            const float4 raw = load_16_bytes(slot);
            held[i] = reinterpret_cast<const uint4&>(raw);
            widen<T>(v, held[i]);
            if constexpr (S::RESIDUAL) {
                const float4 raw_residual = load_16_bytes(slot + S::SLOT_BYTES);
                const float added = memory.x_bias[first + i * S::ROWS];
                float more[EIGHT];
                widen<T>(more, reinterpret_cast<const uint4&>(raw_residual));
#pragma unroll
                for (int c = 0; c < EIGHT; ++c) v[c] = v[c] + added + more[c];
                held[i] = narrowed<T>(v);
                widen<T>(v, held[i]);
                if (problem.sums != nullptr && i < vectors && column < m) *reinterpret_cast<uint4*>(sums) = held[i];
                sums = kept(sums + result_step);
            }
            if (i < vectors) {
#pragma unroll
                for (int c = 0; c < EIGHT; ++c) sum[c] += v[c];
            }
            keep_words(held[i], zero);
            copies.start(slot, (i + S::SLOTS) % S::VECTORS < vectors);
            copies.advance((i + S::SLOTS + 1) % S::VECTORS == 0, clusters);
            slot = slot == ring + (S::SLOTS - 1) * STEP ? ring : slot + STEP;
        }
        add_over_rows<S::EIGHTS>(sum);
#pragma unroll
        for (int i = 0; i < S::VECTORS; ++i) {
            widen<T>(v, held[i]);
            if (i < vectors) {
#pragma unroll
                for (int c = 0; c < EIGHT; ++c) {
                    const float away = fmaf(-warp_count.inverse, sum[c], v[c]);
                    squares[c] = fmaf(away, away, squares[c]);
                }
            }
            keep_words(held[i], zero);
        }
        add_over_rows<S::EIGHTS>(squares);
        if (lane < S::EIGHTS) {
            float4* target = reinterpret_cast<float4*>(&memory.of_warps[warp][first_column]);
#pragma unroll
            for (int c = 0; c < EIGHT; c += 2) target[c / 2] = make_float4(sum[c], squares[c], sum[c + 1], squares[c + 1]);
        }
        __syncthreads();
        const bool combines = threadIdx.x < S::COLUMNS;
        Moments all{0.0f, 0.0f};
        if (combines)
            all = combined<S::WARPS>([&](int i) { return memory.of_warps[i][threadIdx.x]; },
                                     [&](int i) { return memory.warp_counts[i]; }, block_count);
        if constexpr (S::CLUSTER > 1) {
            if (combines) {
#pragma unroll
                for (int other = 0; other < S::CLUSTER; ++other)
                    store_moments(&memory.of_blocks[parity][rank][threadIdx.x], other, all);
            }
            __syncwarp();
            cluster_sync();
            if (combines)
                all = combined<S::CLUSTER>([&](int i) { return memory.of_blocks[parity][i][threadIdx.x]; },
                                           [&](int i) { return memory.block_counts[i]; }, count);
        }
        if (combines) {
            const float scale = rsqrtf(all.squares * count.inverse + problem.eps);
            memory.scale[threadIdx.x] = scale;
            memory.shift[threadIdx.x] = -all.sum * count.inverse * scale;
        }
        __syncthreads();
        float scale[EIGHT], shift[EIGHT];
#pragma unroll
        for (int c = 0; c < EIGHT; c += 4) {
            *reinterpret_cast<float4*>(scale + c) = load_16_bytes(shared_address(memory.scale + first_column + c));
            *reinterpret_cast<float4*>(shift + c) = load_16_bytes(shared_address(memory.shift + first_column + c));
        }
        if (column < m) {
            char* y = static_cast<char*>(problem.y) + place;
#pragma unroll
            for (int i = 0; i < S::VECTORS; ++i) {
                if (i >= vectors) break;
                const float2 affine = memory.affine[first + i * S::ROWS];
                widen<T>(v, held[i]);
#pragma unroll
                for (int c = 0; c < EIGHT; ++c) v[c] = fmaf(fmaf(v[c], scale[c], shift[c]), affine.x, affine.y);
                *reinterpret_cast<uint4*>(y) = narrowed<T>(v);
                y = kept(y + result_step);
            }
        }
    }
    ::wait_for_copies<0>();
}

constexpr int MOST_DEVICES = 64;  // devices with a cached value

// Returns a cudaError_t.
template <typename S>
cudaError_t launch(const Arguments& problem, cudaStream_t stream) {
    static_assert(sizeof(Memory<S>) <= 227 * 1024, "what a block of sm_90 can have");
    const auto kernel = layer_norm_columns_kernel<S>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Memory<S>));
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {S::CLUSTER, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    const int tiles = (problem.m + S::COLUMNS - 1) / S::COLUMNS;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(tiles * S::CLUSTER);
    config.blockDim = dim3(S::THREADS);
    config.dynamicSmemBytes = sizeof(Memory<S>);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 1;
    static std::atomic<int> clusters_at_once[MOST_DEVICES]{};  // by device; 0: not queried yet
    int device = 0;
    error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    int resident = device < MOST_DEVICES ? clusters_at_once[device].load() : 0;
    if (resident == 0) error = cudaOccupancyMaxActiveClusters(&resident, kernel, &config);
    if (error != cudaSuccess) return error;
    if (device < MOST_DEVICES) clusters_at_once[device].store(resident);
    config.gridDim = dim3((tiles < resident ? tiles : resident) * S::CLUSTER);
    config.numAttrs = 1 + problem.pdl;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

}  // namespace column_norm

namespace {

using column_norm::Arguments;

// VECTORS: possible numbers of rows per thread, ascending; the first that covers the features is launched. SLOTS: of the ring
// without a residual, as many as fit into shared memory.
template <typename T, int CLUSTER, int COLUMNS, int THREADS, int SLOTS, int BLOCKS, int... VECTORS>
cudaError_t launch_division(const Arguments& problem, cudaStream_t stream) {
    constexpr int ROWS = THREADS / (COLUMNS / column_norm::EIGHT);
    const int features = (problem.d + CLUSTER - 1) / CLUSTER, rows = (features + ROWS - 1) / ROWS;
    cudaError_t error = cudaErrorInvalidValue;
    const auto launched = [&](auto plain, auto with_residual) {
        error = problem.residual == nullptr ? column_norm::launch<decltype(plain)>(problem, stream)
                                            : column_norm::launch<decltype(with_residual)>(problem, stream);
        return true;
    };
    static_cast<void>(((rows <= VECTORS && launched(column_norm::Shape<T, CLUSTER, COLUMNS, THREADS, VECTORS, SLOTS, BLOCKS, false>{},
                                                    column_norm::Shape<T, CLUSTER, COLUMNS, THREADS, VECTORS, SLOTS / 2, BLOCKS, true>{})) ||
                       ...));
    return error;
}

template <typename T>
cudaError_t launch_any(const Arguments& problem, cudaStream_t stream) {
    const auto is = [&](int cluster, int columns, int threads) {
        return problem.cluster == cluster && problem.columns == columns && problem.threads == threads;
    };
    if (is(1, 32, 512)) return launch_division<T, 1, 32, 512, 24, 1, 6, 8>(problem, stream);
    if (is(2, 64, 512)) return launch_division<T, 2, 64, 512, 24, 1, 6, 8>(problem, stream);
    if (is(4, 32, 256)) return launch_division<T, 4, 32, 256, 24, 2, 4, 8>(problem, stream);
    return cudaErrorInvalidValue;
}

}  // namespace

// Returns a cudaError_t. The caller checks that m is a positive multiple of 8, all matrices begin at a multiple of 16 bytes and rows
// are a multiple of 8 elements apart, and that x_bias and sums come with a residual. Other divisions than those above, and more
// features than one supports, are an error.
extern "C" int sparsefront_layer_norm_columns(const Arguments* arguments, void* stream) {
    if (arguments->d < 1 || arguments->m < 1 || arguments->m % column_norm::EIGHT != 0) return cudaErrorInvalidValue;
    const auto queue = static_cast<cudaStream_t>(stream);
    return arguments->is_bfloat16 ? launch_any<__nv_bfloat16>(*arguments, queue) : launch_any<__half>(*arguments, queue);
}
