// Y[M, N] = activation(X[M, K] · W[N, K]ᵀ + bias) + residual for a blocked weight in e4m3 on Hopper's tensor cores (sm_90a), row-major.
//
// X has a scale per row, or per row and 128 inputs; W has one per output. Y is 16-bit, or e4m3 with a scale per row and 128 outputs,
// as input of the next product. A work tile is 128 outputs (two halves of 64, each with its list of kept blocks) by 64 rows of X per
// consumer warpgroup, of which there are two or three. Clusters process lists of tiles computed on the host. One producer warp
// loads X and weights into pipeline stages. See ../README.md.
#include <algorithm>
#include <iterator>

#include "../../cuda/tensor_map.cuh"
#include "fp8_producer.cuh"
#include "fp8_consumer.cuh"

namespace {

// Registers per thread by role; at launch each has 168 with two consumer warpgroups, 128 with three.
template <int GROUPS>
constexpr int CONSUMER_REGISTERS = GROUPS == 2 ? 224 : 152;
constexpr int PRODUCER_REGISTERS = 56;
static_assert(2 * CONSUMER_REGISTERS<2> + PRODUCER_REGISTERS <= 3 * 168);
static_assert(3 * CONSUMER_REGISTERS<3> + PRODUCER_REGISTERS <= 4 * 128);

template <int GROUPS, typename T, bool GROUPED, bool HALVES, bool SPLIT>
__global__ void __launch_bounds__((GROUPS + 1) * WARPGROUP, 1) blocked_fp8_sm90_kernel(const __grid_constant__ Problem problem) {
    using S = Shape<GROUPS, SPLIT, GROUPED>;
    extern __shared__ __align__(1024) uint8_t dynamic_shared[];
    const uint32_t shared = warp_uniform(shared_address(dynamic_shared));
    const int rank = static_cast<int>(warp_uniform(rank_in_cluster()));
    if (threadIdx.x == 0) {
        if (shared % 1024 != 0) __trap();  // the swizzle repeats every 1024 bytes
        prefetch_tensor_map(&problem.x);
        prefetch_tensor_map(&problem.y);
        for (int slot = 0; slot < S::STAGES; ++slot) {
            barrier_init(shared + S::FULL + 8 * slot, GROUPED ? 1 + 32 : 1);
            barrier_init(shared + S::EMPTY + 8 * slot, SPLIT ? 4 : problem.cluster * GROUPS * 4);
        }
        for (int group = 0; group < GROUPS; ++group) barrier_init(shared + S::LANDED + 8 * group, 1);
        fence_barrier_init();
    }
    cluster_sync();  // no CTA may signal another's barriers before they are initialized
    if (threadIdx.x < S::CONSUMER_THREADS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS<GROUPS>));
        pdl_wait();
        pdl_launch_dependents();
        if constexpr (SPLIT) {
            consume_part<S, T, GROUPED, HALVES>(problem, rank, shared);
        } else {
            consume<S, T, GROUPED, HALVES>(problem, rank, shared);
        }
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        const int warp = warp_uniform(threadIdx.x / 32) - S::CONSUMER_THREADS / 32;
        if (warp == 0) produce<S, SPLIT, false>(problem, rank, shared);
        if (GROUPED && warp == 1) produce<S, SPLIT, true>(problem, rank, shared);
        if (threadIdx.x == S::THREADS - 1 && blockIdx.x < problem.cut_tile_count)
            prefetch_line(problem.cut_tiles + blockIdx.x);  // for the second kernel
        if constexpr (SPLIT) {
            __syncwarp();
            cluster_sync();  // joins the consumers' sync before their reduction
        }
    }
    cluster_sync();  // others may still signal this CTA's barriers and read its sums
}

// Finishes tiles that were cut into pieces; each CTA has some rows of one.
template <typename T>
__global__ void __launch_bounds__(ADDING) blocked_fp8_sm90_cut_tiles_kernel(const __grid_constant__ Problem problem) {
    __shared__ __align__(16) float sums[CUT_ROWS][ROW_FLOATS];
    pdl_launch_dependents();
    const int blocks = problem.piece_units * (GROUP_ROWS / CUT_ROWS);  // per tile
    finish_rows<T>(problem, blockIdx.x / blocks, blockIdx.x % blocks * CUT_ROWS, sums);
}

struct Kernel {
    void (*function)(Problem);
    int threads, rows, shared_bytes;  // rows of X per work tile of a CTA

    cudaError_t prepare() const {
        return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    }
};

template <int GROUPS, typename T, bool GROUPED, bool HALVES, bool SPLIT>
Kernel kernel_of() {
    using S = Shape<GROUPS, SPLIT, GROUPED>;
    return {blocked_fp8_sm90_kernel<GROUPS, T, GROUPED, HALVES, SPLIT>, S::THREADS, S::ROWS, S::BYTES};
}

template <typename T, bool GROUPED, bool HALVES>
Kernel kernel_of(int groups, bool split) {
    if (split) return kernel_of<2, T, GROUPED, HALVES, true>();
    return groups == 3 ? kernel_of<3, T, GROUPED, HALVES, false>() : kernel_of<2, T, GROUPED, HALVES, false>();
}

template <typename T>
Kernel kernel_of(int groups, bool grouped, bool halves, bool split) {
    if (grouped) return halves ? kernel_of<T, true, true>(groups, split) : kernel_of<T, true, false>(groups, split);
    return halves ? kernel_of<T, false, true>(groups, split) : kernel_of<T, false, false>(groups, split);
}

cudaError_t launch(const Kernel& kernel, const Problem& problem, int clusters, bool pdl, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(problem.cluster * problem.splits), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters * problem.cluster * problem.splits);
    config.blockDim = dim3(kernel.threads);
    config.dynamicSmemBytes = kernel.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 1 + pdl;
    const cudaError_t error = kernel.prepare();
    return error == cudaSuccess ? cudaLaunchKernelEx(&config, kernel.function, problem) : error;
}

cudaError_t finish_cut_tiles(void (*kernel)(Problem), const Problem& problem, int cut_tiles, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cut_tiles * problem.piece_units * (GROUP_ROWS / CUT_ROWS));
    config.blockDim = dim3(ADDING);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

}  // namespace

// Same field order as in blocked/fp8_sm90.py. Matrices and their rows are 16-byte aligned; strides are in elements.
struct Arguments {
    const void *x, *x_scales, *panels, *k_blocks, *work, *work_begin, *first_work, *w_scales, *bias, *residual;
    void *y, *y_scales;
    const void *units, *cut_tiles;  // null if no tile is cut
    void* sums;
    long long x_stride, residual_stride, y_stride;
    int bias_type;   // 0 none, 1 float, 2 half, 3 bfloat16
    int activation;
    int y_type;      // 2 half, 3 bfloat16, 4 e4m3: then there is no residual
    int x_groups;    // scales of a row of X: 1 or k / 128
    int halves;      // whether any k-block is used by only one half
    int m, n, k;
    int groups;      // consumer warpgroups: 2 or 3
    int cluster, splits, clusters;
    int cut_tile_count, piece_units;
    int pdl;
};

// Returns a cudaError_t.
extern "C" int sparsefront_blocked_fp8_sm90(const Arguments* given, void* stream) {
    const Arguments& a = *given;
    const bool split = a.splits > 0, quantized = a.y_type == 4;
    Problem problem{};
    const Matrix x{a.x, a.m, a.k / 2, a.x_stride / 2};
    const Matrix y = quantized ? Matrix{a.y, a.m, a.n / 2, a.y_stride / 2} : Matrix{a.y, a.m, a.n, a.y_stride};
    const bool grouped = a.x_groups > 1;
    const Kernel kernel = quantized         ? kernel_of<E4M3>(a.groups, grouped, a.halves, split)
                          : a.y_type == 3 ? kernel_of<__nv_bfloat16>(a.groups, grouped, a.halves, split)
                                            : kernel_of<__half>(a.groups, grouped, a.halves, split);
    cudaError_t error = make_tensor_map(problem.x, x, kernel.rows, K_BLOCK / 2);
    if (error == cudaSuccess) error = make_tensor_map(problem.y, y, GROUP_ROWS, 64);
    if (error == cudaSuccess && a.residual != nullptr)
        error = make_tensor_map(problem.residual, Matrix{a.residual, a.m, a.n, a.residual_stride}, GROUP_ROWS, 64);
    if (error != cudaSuccess) return error;
    problem.panels = static_cast<const uint8_t*>(a.panels);
    problem.k_blocks = static_cast<const int2*>(a.k_blocks);
    problem.work = static_cast<const int4*>(a.work);
    problem.work_begin = static_cast<const int*>(a.work_begin);
    problem.first_work = static_cast<const int4*>(a.first_work);
    problem.x_scales = static_cast<const float*>(a.x_scales);
    problem.w_scales = static_cast<const float*>(a.w_scales);
    problem.y_scales = static_cast<float*>(a.y_scales);
    problem.units = static_cast<const int*>(a.units);
    problem.cut_tiles = static_cast<const int4*>(a.cut_tiles);
    problem.sums = static_cast<float*>(a.sums), problem.cut_tile_count = a.cut_tile_count, problem.piece_units = a.piece_units;
    Epilogue& epilogue = problem.epilogue;
    epilogue.bias = a.bias, epilogue.bias_type = a.bias_type, epilogue.activation = a.activation;
    epilogue.residual = a.residual, epilogue.residual_stride = a.residual_stride;
    epilogue.y = a.y, epilogue.y_stride = a.y_stride;
    std::copy_n(GELU_COEFFICIENTS[a.activation == GELU_TANH], std::size(epilogue.gelu), epilogue.gelu);
    problem.x_groups = a.x_groups, problem.m = a.m, problem.n = a.n;
    problem.cluster = a.cluster, problem.splits = std::max(1, a.splits);
    const auto queue = static_cast<cudaStream_t>(stream);
    error = launch(kernel, problem, a.clusters, a.pdl, queue);
    if (error != cudaSuccess || a.cut_tile_count == 0) return error;
    return finish_cut_tiles(quantized         ? blocked_fp8_sm90_cut_tiles_kernel<E4M3>
                            : a.y_type == 3 ? blocked_fp8_sm90_cut_tiles_kernel<__nv_bfloat16>
                                              : blocked_fp8_sm90_cut_tiles_kernel<__half>,
                            problem, a.cut_tile_count, queue);
}

// Number of concurrent clusters with this many CTAs on the current device; a negated cudaError_t on failure.
extern "C" int sparsefront_blocked_fp8_sm90_clusters(int cluster) {
    const Kernel kernel = kernel_of<__half, false, false>(2, false);
    cudaError_t error = kernel.prepare();
    if (error != cudaSuccess) return -static_cast<int>(error);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cluster);
    config.blockDim = dim3(kernel.threads);
    config.dynamicSmemBytes = kernel.shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel.function, &config);
    return error == cudaSuccess ? clusters : -static_cast<int>(error);
}
