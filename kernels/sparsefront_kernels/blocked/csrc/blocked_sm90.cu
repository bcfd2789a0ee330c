// Y[M, N] = activation(X[M, K] · W[N, K]ᵀ + bias) + residual for a blocked weight with Hopper's wgmma (sm_90a),
// row-major or feature-major. Blocks are dense or 2:4 sparse.
//
// A work tile is 128 outputs (two halves of 64, each with its list of kept blocks) by up to 256 rows of X. The kernel
// is persistent: CTAs, or clusters of CTAs that share the weights by multicast, go through lists of work tiles that the
// host scheduled. One producer warp loads X and weights into the pipeline stages with TMA, two consumer warpgroups
// issue wgmma, and Y is stored with TMA. If CTAs split the k-blocks of a tile (split-K), a second kernel adds up their
// partial sums. See ../README.md.
#include <algorithm>
#include <iterator>

#include "../../cuda/tensor_map.cuh"
#include "blocked_consumer.cuh"
#include "blocked_producer.cuh"

namespace {

// Registers per thread and role, redistributed by setmaxnreg from the 168 that each thread has at launch.
constexpr int CONSUMER_REGISTERS = 216, PRODUCER_REGISTERS = 72;
static_assert(CONSUMERS * CONSUMER_REGISTERS + PRODUCERS * PRODUCER_REGISTERS <= THREADS * 168);

template <typename T, int INPUTS, Source SOURCE, Weights WEIGHTS>
__global__ void __launch_bounds__(THREADS, 1) blocked_sm90_kernel(const __grid_constant__ Problem problem) {
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * STAGES + 2 * QUARTER_BUFFERS];
    __shared__ uint32_t uses_of_slots[STAGES];
    const uint32_t stages = warp_uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // swizzle atoms are 1024 bytes
    const uint32_t full = warp_uniform(shared_address(barriers)), empty = full + 8 * STAGES, landed = empty + 8 * STAGES;
    const uint32_t slot_uses = warp_uniform(shared_address(uses_of_slots));
    const int rank = static_cast<int>(warp_uniform(rank_in_cluster()));
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&problem.x);
        if (!problem.y_by_threads) prefetch_tensor_map(&problem.y);
        for (int slot = 0; slot < STAGES; ++slot) {
            barrier_init(full + 8 * slot, 1);
            barrier_init(empty + 8 * slot, problem.cluster * (CONSUMERS / 32));
        }
        for (int buffer = 0; buffer < 2 * QUARTER_BUFFERS; ++buffer) barrier_init(landed + 8 * buffer, 1);
        fence_barrier_init();
    }
    cluster_sync();  // no CTA may signal another's mbarriers before they are initialized
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        pdl_wait();
        pdl_launch_dependents();
        consume<T, XStage<INPUTS, SOURCE>, WEIGHTS>(problem, rank, stages, full, empty, slot_uses, landed);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (warp_uniform(threadIdx.x / 32) == CONSUMERS / 32)
            Producer<INPUTS, SOURCE, WEIGHTS>::run(problem, rank, stages, full, empty, slot_uses);
        else if (threadIdx.x == THREADS - 1 && blockIdx.x < problem.cut_tile_count)
            prefetch_line(problem.cut_tiles + blockIdx.x);  // for the second kernel
    }
    cluster_sync();  // other CTAs may still signal this CTA's mbarriers
}

// Finishes the split tiles, CUT_COLUMNS columns of one tile per CTA.
template <typename T>
__global__ void __launch_bounds__(CONSUMERS) blocked_sm90_cut_tiles_kernel(const __grid_constant__ Problem problem) {
    __shared__ __align__(128) uint8_t buffers[2 * CUT_COLUMNS * HALF * 2];
    pdl_launch_dependents();
    const int blocks = problem.piece_units * (GROUP / CUT_COLUMNS);  // CTAs per tile
    finish_columns<T>(problem, blockIdx.x / blocks, blockIdx.x % blocks * CUT_COLUMNS, shared_address(buffers));
}

template <typename T, int INPUTS, Source SOURCE, Weights WEIGHTS>
cudaError_t prepared(void (*&kernel)(Problem)) {
    kernel = blocked_sm90_kernel<T, INPUTS, SOURCE, WEIGHTS>;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DYNAMIC_BYTES);
}

cudaLaunchConfig_t configuration(int clusters, int cluster, bool pdl, cudaStream_t stream, cudaLaunchAttribute (&attributes)[2]) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters * cluster);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = DYNAMIC_BYTES;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 1 + pdl;
    return config;
}

template <typename T, int INPUTS, Source SOURCE, Weights WEIGHTS = Weights::ALL>
cudaError_t launch(const Problem& problem, int clusters, bool pdl, cudaStream_t stream) {
    void (*kernel)(Problem);
    const cudaError_t error = prepared<T, INPUTS, SOURCE, WEIGHTS>(kernel);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2]{};
    const cudaLaunchConfig_t config = configuration(clusters, problem.cluster, pdl, stream, attributes);
    return cudaLaunchKernelEx(&config, kernel, problem);
}

template <typename T>
cudaError_t finish_cut_tiles(const Problem& problem, int cut_tiles, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cut_tiles * problem.piece_units * (GROUP / CUT_COLUMNS));
    config.blockDim = dim3(CONSUMERS);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, blocked_sm90_cut_tiles_kernel<T>, problem);
}

template <typename T>
cudaError_t launch(const Problem& problem, int inputs, Source source, bool halved, int clusters, bool pdl, cudaStream_t stream) {
    if ((source != Source::ROWS || halved) && inputs != 64) return cudaErrorInvalidValue;
    if (halved && source == Source::ROWS) return launch<T, 64, Source::ROWS, Weights::HALVED>(problem, clusters, pdl, stream);
    if (halved && source == Source::INPUTS) return launch<T, 64, Source::INPUTS, Weights::HALVED>(problem, clusters, pdl, stream);
    if (halved) return cudaErrorInvalidValue;
    if (source == Source::INPUTS) return launch<T, 64, Source::INPUTS>(problem, clusters, pdl, stream);
    if (source == Source::IMAGES) return launch<T, 64, Source::IMAGES>(problem, clusters, pdl, stream);
    switch (inputs) {
        case 64: return launch<T, 64, Source::ROWS>(problem, clusters, pdl, stream);
        case 32: return launch<T, 32, Source::ROWS>(problem, clusters, pdl, stream);
        case 16: return launch<T, 16, Source::ROWS>(problem, clusters, pdl, stream);
        default: return cudaErrorInvalidValue;
    }
}

Convolution convolution_of(const Images& images) {
    return {images.c,        images.filter_w,  images.out_h,     images.out_w,      images.stride_h,
            images.stride_w, images.padding_h, images.padding_w, images.dilation_h, images.dilation_w};
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment: all matrices are 16-byte aligned, and row strides are
// multiples of 8 elements, except that a feature-major Y may have any row stride. X is [m, k], or [k, m] if
// `x_feature_major`; Y and the residual are [m, n], or [n, m] unless `y_row_major`. Strides are in elements. inputs:
// inputs per box, 64, 32 or 16. halved: whether panels are 2:4; then inputs is 64. units to piece_units: as in Problem;
// null if no tile is split.
// images: null, or what X is read from instead of `x`; then inputs is 64, and m and k are those of the convolution as a
// matrix product.
extern "C" int sparsefront_blocked_sm90(const void* x, const void* panels, const void* k_blocks, const void* work,
                                        const void* work_begin, const void* first_work, const void* outputs,
                                        const void* units, const void* cut_tiles, void* sums, const void* bias, const void* residual, void* y,
                                        long long x_stride, long long residual_stride, long long y_stride, int bias_type,
                                        int activation, int x_feature_major, int y_row_major, int is_bfloat16, int m, int n, int k,
                                        int inputs, int halved, int cluster, int clusters, int cut_tile_count, int piece_units, int pdl, int relu_last, const Images* images,
                                        void* stream) {
    Problem problem{};
    const Matrix x_matrix = x_feature_major ? Matrix{x, k, m, x_stride} : Matrix{x, m, k, x_stride};
    const Matrix y_matrix = y_row_major ? Matrix{y, m, n, y_stride} : Matrix{y, n, m, y_stride};
    const Matrix residual_matrix{residual, y_matrix.rows, y_matrix.columns, residual_stride};
    const Source source = images != nullptr ? Source::IMAGES : x_feature_major ? Source::INPUTS : Source::ROWS;
    cudaError_t error = source == Source::IMAGES   ? make_image_map(problem.x, *images, GROUP)
                        : source == Source::INPUTS ? make_tensor_map(problem.x, x_matrix, inputs, GROUP)
                                                   : make_tensor_map(problem.x, x_matrix, GROUP, inputs);
    if (source == Source::IMAGES) problem.convolution = convolution_of(*images);
    problem.y_by_threads = !y_row_major && y_stride % 8 != 0;
    if (error == cudaSuccess && !problem.y_by_threads) error = make_tensor_map(problem.y, y_matrix, GROUP, HALF);
    if (error == cudaSuccess && residual != nullptr) error = make_tensor_map(problem.residual, residual_matrix, GROUP, HALF);
    if (error != cudaSuccess) return error;
    problem.panels = static_cast<const uint8_t*>(panels);
    problem.k_blocks = static_cast<const int*>(k_blocks);
    problem.work = static_cast<const int4*>(work);
    problem.work_begin = static_cast<const int*>(work_begin);
    problem.first_work = static_cast<const int4*>(first_work);
    problem.outputs = static_cast<const int*>(outputs);
    problem.units = static_cast<const int*>(units);
    problem.cut_tiles = static_cast<const int4*>(cut_tiles);
    problem.sums = static_cast<float*>(sums), problem.cut_tile_count = cut_tile_count, problem.piece_units = piece_units;
    Epilogue& epilogue = problem.epilogue;
    epilogue.bias = bias, epilogue.bias_type = bias_type, epilogue.activation = activation;
    epilogue.residual = residual, epilogue.residual_stride = residual_stride;
    epilogue.y = y, epilogue.y_stride = y_stride, epilogue.y_row_major = y_row_major, epilogue.m = m;
    std::copy_n(GELU_COEFFICIENTS[activation == GELU_TANH], std::size(epilogue.gelu), epilogue.gelu);
    problem.relu_last = relu_last;
    problem.m = m, problem.cluster = cluster;
    const auto queue = static_cast<cudaStream_t>(stream);
    if (clusters > 0)
        error = is_bfloat16 ? launch<__nv_bfloat16>(problem, inputs, source, halved, clusters, pdl, queue)
                            : launch<__half>(problem, inputs, source, halved, clusters, pdl, queue);
    if (error != cudaSuccess || cut_tile_count == 0) return error;
    return is_bfloat16 ? finish_cut_tiles<__nv_bfloat16>(problem, cut_tile_count, queue)
                       : finish_cut_tiles<__half>(problem, cut_tile_count, queue);
}

// Number of clusters of this size that can be resident at the same time on the current device; a negated cudaError_t on
// failure.
extern "C" int sparsefront_blocked_sm90_clusters(int cluster) {
    void (*kernel)(Problem);
    cudaError_t error = prepared<__half, 64, Source::ROWS, Weights::ALL>(kernel);
    if (error != cudaSuccess) return -static_cast<int>(error);
    cudaLaunchAttribute attributes[2]{};
    const cudaLaunchConfig_t config = configuration(1, cluster, false, nullptr, attributes);
    int clusters = 0;
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    return error == cudaSuccess ? clusters : -static_cast<int>(error);
}
