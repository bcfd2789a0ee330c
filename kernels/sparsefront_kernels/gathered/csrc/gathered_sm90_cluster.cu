// Y[N, M] = W[N, K] · X[K, M] + bias[N] for a gathered weight on Hopper's tensor cores (sm_90a), feature-major.
//
// A block of the grid computes 128 outputs x BLOCK_M columns at a time. Its two consumer warpgroups own 64 outputs each;
// further warps load. A stage of the pipeline in shared memory is 64 rows of X, gathered by cp.async (a kept input is one
// contiguous run of BLOCK_M elements), and for each half the weights to those rows, which were packed beforehand as the
// tensor cores read them, so that one bulk copy brings them.
//
// The halves may keep different inputs. Rows come in MMA tiles of 16, and each MMA tile is used by one half or by both: a row
// that both keep is loaded once, and no product is spent on a half that does not keep it. See ../README.md.
#include <algorithm>
#include <iterator>

#include "cluster_consumer.cuh"
#include "cluster_producer.cuh"

namespace {

template <typename T, int BLOCK_M, int PRODUCER_GROUPS, int GROUP_WARPS, int BLOCKS_PER_SM, bool SPLIT, EpilogueKind KIND>
__global__ void __launch_bounds__(CONSUMERS + 32 * PRODUCER_GROUPS * GROUP_WARPS, BLOCKS_PER_SM)
    gathered_sm90_cluster_kernel(const __grid_constant__ Problem problem) {
    using Loader = Producer<T, BLOCK_M, PRODUCER_GROUPS, GROUP_WARPS, SPLIT>;
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * MOST_STAGES + 1];
    __shared__ uint32_t uses_of_slots[MOST_STAGES];
    __shared__ alignas(16) typename Loader::Lists lists;
    const uint32_t stages = warp_uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // the swizzle repeats every 1024 bytes
    const uint32_t full = warp_uniform(shared_address(barriers)), empty = full + 8 * MOST_STAGES, received = empty + 8 * MOST_STAGES;
    const uint32_t slot_uses = warp_uniform(shared_address(uses_of_slots));
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < problem.stages; ++slot) {
            barrier_init(full + 8 * slot, 32 * GROUP_WARPS + 1);
            barrier_init(empty + 8 * slot, CONSUMERS / 32);
        }
        if (SPLIT) barrier_init(received, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (warp_uniform(threadIdx.x / 32) < CONSUMERS / 32) {
        pdl_wait();
        pdl_launch_dependents();
        consume<T, BLOCK_M, SPLIT, KIND>(problem, stages, full, empty, received, slot_uses);
    } else {
        Loader::run(problem, stages, full, empty, slot_uses, lists);
    }
}

template <typename T, int BLOCK_M, int PRODUCER_GROUPS, int GROUP_WARPS, int BLOCKS_PER_SM, EpilogueKind KIND>
cudaError_t launch(const Problem& problem, int clusters, cudaStream_t stream) {
    constexpr auto one_block = gathered_sm90_cluster_kernel<T, BLOCK_M, PRODUCER_GROUPS, GROUP_WARPS, BLOCKS_PER_SM, false, KIND>;
    auto kernel = one_block;
    if constexpr (!begins_with_residual(KIND)) {
        if (problem.splits > 1) kernel = gathered_sm90_cluster_kernel<T, BLOCK_M, PRODUCER_GROUPS, GROUP_WARPS, BLOCKS_PER_SM, true, KIND>;
    }
    if (problem.splits > 1 && kernel == one_block) return cudaErrorInvalidValue;
    // with fewer stages a producer group could be two rounds ahead of a slot, and parities tell only one round from the next
    if (problem.stages < PRODUCER_GROUPS) return cudaErrorInvalidValue;
    const int stage_bytes = problem.stages * (BLOCK_M * ROW_BYTES + 2 * PANEL_BYTES), bytes = 1024 + stage_bytes;
    const int subtiles = (BLOCK_M / 32 + problem.splits - 1) / problem.splits;  // that a block of several adds up
    if (stage_bytes < subtiles * (problem.splits - 1) * CONSUMERS * 64) return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    const unsigned cluster = problem.splits;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {1, cluster, 1};
    }
    if (problem.pdl) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters, cluster);
    config.blockDim = dim3(CONSUMERS + 32 * PRODUCER_GROUPS * GROUP_WARPS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

template <typename T, EpilogueKind KIND>
cudaError_t launch(const Problem& problem, int block_m, int blocks_per_sm, int clusters, cudaStream_t stream) {
    switch (block_m * 10 + blocks_per_sm) {
        case 641:
        case 642: return launch<T, 64, 2, 2, 2, KIND>(problem, clusters, stream);
        case 1281: return launch<T, 128, 4, 2, 1, KIND>(problem, clusters, stream);
        case 1282:  // no registers are left to add up with
            return problem.splits > 1 ? cudaErrorInvalidValue : launch<T, 128, 2, 1, 2, KIND>(problem, clusters, stream);
        default: return cudaErrorInvalidValue;
    }
}

template <typename T>
cudaError_t launch(const Problem& problem, int block_m, int blocks_per_sm, int clusters, cudaStream_t stream) {
    const Epilogue& epilogue = problem.epilogue;
    const bool activates = epilogue.activation != NONE;
    const bool adds = epilogue.residual != nullptr && problem.splits == 1;  // blocks that split k-blocks add it at the end
    const auto chosen = epilogue.y_row_major ? (activates ? launch<T, EpilogueKind::ROW_MAJOR_ACTIVATED>
                                                : adds    ? launch<T, EpilogueKind::ROW_MAJOR_RESIDUAL>
                                                          : launch<T, EpilogueKind::ROW_MAJOR>)
                                             : (activates ? launch<T, EpilogueKind::FEATURE_MAJOR_ACTIVATED>
                                                : adds    ? launch<T, EpilogueKind::FEATURE_MAJOR_RESIDUAL>
                                                          : launch<T, EpilogueKind::FEATURE_MAJOR>);
    return chosen(problem, block_m, blocks_per_sm, clusters, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment (16 bytes); m, the columns of X, is a multiple of 8, and of Y
// the first `y_m` are written. Strides are in elements.
extern "C" int sparsefront_gathered_sm90_cluster(const void* x, const void* panels, const void* k_blocks, const void* cta_tiles,
                                         const void* outputs, const void* bias, const void* residual, void* y,
                                         long long x_stride, long long residual_stride, long long y_stride,
                                         int k_blocks_of_each, int longer, int bias_type, int activation, int y_row_major,
                                         int is_bfloat16, int m, int y_m, int cta_tile_count, int block_m, int stages, int raster_swizzle,
                                         int splits, int pdl, int prefetch,
                                         int blocks_per_sm, int clusters, void* stream) {
    if (stages < 2 || stages > MOST_STAGES || x_stride >= (1ll << 31)) return cudaErrorInvalidValue;
    Epilogue epilogue{static_cast<const int*>(outputs), bias, bias_type, activation, {}, residual, residual_stride, y, y_stride,
                      y_m, y_row_major};
    std::copy_n(GELU_COEFFICIENTS[activation == GELU_TANH], std::size(epilogue.gelu), epilogue.gelu);
    const Problem problem{x,
                          static_cast<const uint8_t*>(panels),
                          static_cast<const int*>(k_blocks),
                          static_cast<const int2*>(cta_tiles),
                          k_blocks_of_each,
                          longer,
                          epilogue,
                          static_cast<unsigned>(2 * x_stride),
                          m,
                          cta_tile_count,
                          stages,
                          raster_swizzle,
                          splits,
                          pdl,
                          prefetch};
    const auto queue = static_cast<cudaStream_t>(stream);
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, block_m, blocks_per_sm, clusters, queue)
                       : launch<__half>(problem, block_m, blocks_per_sm, clusters, queue);
}
