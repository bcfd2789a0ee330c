// LayerNorm of the columns of a feature-major matrix in 16 bits: y = (s - mean) / sqrt(variance + eps) * weight + bias, where s is
// x + x_bias + residual, rounded. Everything is read once and added up in float32.
//
// A cluster of blocks owns a tile of some columns and all features, each block its part of the features, and goes from tile to
// tile. Each thread copies its own sixteen bytes of a row into a ring of shared memory, many slots ahead, so that memory is
// busy while sums are made; it alone reads them, so that no barrier guards the ring. Columns of a tile lie in the registers.
// Sums of squares are made around the mean of a warp's features, and moved to the mean of all: one exchange gives both.
#pragma once

#include <atomic>

#include "../../cuda/epilogue_math.cuh"
#include "../../cuda/pairs.cuh"
#include "row_copies.cuh"

namespace column_norm {

// They stay as words: what was widened before would be kept for later if the compiler knew that they are the same, and that takes
// more registers than there are. zero: 0, which the compiler does not know.
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
    const int part = (d + S::CLUSTER - 1) / S::CLUSTER, begin = rank * part;  // features of each block, and where this one's begin
    const int features = max(0, min(part, d - begin));
    const int tiles = (m + S::COLUMNS - 1) / S::COLUMNS, clusters = gridDim.x / S::CLUSTER;
    const int first_tile = blockIdx.x / S::CLUSTER;

    // This thread has rows first, first + ROWS, … of each tile.
    const int vectors = max(0, min(S::VECTORS, (features - first + S::ROWS - 1) / S::ROWS));
    Copies<S> copies(problem, begin + first, first_tile, first_column);

    if constexpr (S::CLUSTER > 1) cluster_sync_relaxed();  // all blocks have started, before others write their memory
    pdl_wait();  // parameters too may have been written just now
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

    const long long result_step = 2LL * S::ROWS * m;  // bytes from one row of a thread to its next
    const uint32_t zero = reinterpret_cast<uint64_t>(problem.y) % 16;  // see keep_words; y begins at a multiple
    uint32_t slot = ring;
    int parity = 0;
#pragma unroll 1
    for (int tile = first_tile; tile < tiles; tile += clusters, parity ^= 1) {
        const int column = tile * S::COLUMNS + first_column;
        const long long place = 2 * (static_cast<long long>(begin + first) * m + column);  // of results, in bytes
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

constexpr int MOST_DEVICES = 64;  // of which it is remembered

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
    static std::atomic<int> clusters_at_once[MOST_DEVICES]{};  // of each device; 0: not asked yet
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
