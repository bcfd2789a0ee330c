// Y[N, M] = activation(W[N, K] · X[K, M] + bias) + residual for a gathered weight on Hopper's tensor cores (sm_90a): work tiles of
// 128 outputs x 64 to 256 columns.
//
// A block of the grid works through a list of tiles that was made on the host: blocks get equal work, whatever the lengths of
// the lists of kept inputs. Either the last tiles are narrower (../sm90_schedule.py), or several blocks share the k-blocks of a tile
// (../sm90_sharing.py): each writes its sums to memory, and a second kernel adds them up in a fixed order. Four or eight of a block's
// warps gather X and bring weights into the stages of a pipeline, two warpgroups multiply and store Y. See ../README.md.
#include <algorithm>
#include <iterator>

#include "persistent_consumer.cuh"
#include "persistent_parts.cuh"
#include "persistent_producer.cuh"

namespace {

// Registers of a thread, by part. With fewer, the warps that load compute one address at a time and wait for each copy to read it:
// 10 % slower. Places of halved weights are in registers too, of several stages at a time.
template <int WIDEST, Weights WEIGHTS>
constexpr int CONSUMER_REGISTERS = WIDEST != 256 ? 152 : WEIGHTS == Weights::ALL ? 208 : 216;
template <int WIDEST, Weights WEIGHTS>
constexpr int PRODUCER_REGISTERS = WIDEST != 256 ? 104 : WEIGHTS == Weights::ALL ? 88 : 72;

template <typename T, typename Y, Weights WEIGHTS, int WIDEST>
__global__ void __launch_bounds__(Block<WIDEST>::THREADS, 1)
    gathered_sm90_persistent_kernel(const __grid_constant__ Problem problem) {
    using B = Block<WIDEST>;
    static_assert(CONSUMERS * CONSUMER_REGISTERS<WIDEST, WEIGHTS> + B::PRODUCERS * PRODUCER_REGISTERS<WIDEST, WEIGHTS> <=
                  B::THREADS * (65536 / B::THREADS / 8 * 8));
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * B::STAGES];
    __shared__ uint32_t uses_of_slots[B::STAGES];
    using Producer = Producer<WIDEST, WEIGHTS>;
    __shared__ alignas(16) typename Producer::Lists lists;
    const uint32_t stages = warp_uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // the swizzle repeats every 1024 bytes
    const uint32_t full = warp_uniform(shared_address(barriers)), empty = full + 8 * B::STAGES;
    const uint32_t slot_uses = warp_uniform(shared_address(uses_of_slots));
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < B::STAGES; ++slot) {
            barrier_init(full + 8 * slot, 32 * B::GROUP_WARPS + 1);
            barrier_init(empty + 8 * slot, CONSUMERS / 32);
        }
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS<WIDEST, WEIGHTS>));
        consume<T, Y, WEIGHTS, WIDEST>(problem, stages, full, empty, slot_uses);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS<WIDEST, WEIGHTS>));
        Producer::run(problem, stages, full, empty, slot_uses, lists);
    }
}

// How a kernel is launched.
struct Launch {
    int blocks;
    bool pdl;
    cudaStream_t stream;

    template <typename Argument>
    cudaError_t operator()(void (*kernel)(Argument), int blocks_, int threads, int bytes, const Argument& argument) const {
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(blocks_);
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = bytes;
        config.stream = stream;
        config.attrs = &attribute;
        config.numAttrs = pdl;
        return cudaLaunchKernelEx(&config, kernel, argument);
    }
};

template <typename T, typename Y, Weights WEIGHTS, int WIDEST>
cudaError_t launch(const Problem& problem, const SharedTiles& shared, const Launch& launch) {
    using B = Block<WIDEST>;
    constexpr auto kernel = gathered_sm90_persistent_kernel<T, Y, WEIGHTS, WIDEST>;
    constexpr int bytes = 1024 + B::STAGES * B::STAGE_BYTES;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) error = launch(kernel, launch.blocks, B::THREADS, bytes, problem);
    if (error == cudaSuccess && shared.count > 0)
        error = launch(add_up_parts<T, Y, WIDEST>, shared.count * 2 * (WIDEST / QUARTER), HALF_THREADS, 0, shared);
    return error;
}

template <typename T, typename Y>
cudaError_t launch(const Problem& problem, const SharedTiles& shared, bool halved, int widest, const Launch& how) {
    switch (widest * 2 + halved) {
        case 2 * 256: return launch<T, Y, Weights::ALL, 256>(problem, shared, how);
        case 2 * 256 + 1: return launch<T, Y, Weights::HALVED, 256>(problem, shared, how);
        case 2 * 128: return launch<T, Y, Weights::ALL, 128>(problem, shared, how);
        default: return cudaErrorInvalidValue;
    }
}

template <typename T>
cudaError_t launch(const Problem& problem, const SharedTiles& shared, bool halved, int widest, const Launch& how) {
    return problem.epilogue.y_row_major ? launch<T, RowMajor<T>>(problem, shared, halved, widest, how)
                                        : launch<T, FeatureMajor<T>>(problem, shared, halved, widest, how);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment (16 bytes); m, the columns of X, is a multiple of 8, and of Y
// the first `y_m` are written. Strides are in elements. halved: whether panels hold two of every four inputs; then tiles are up to 256
// columns wide. Where Y is row-major, each eight `outputs` from a multiple of eight on are eight neighbours, the first a multiple of
// 8, or -1. shared: of the `shared_count` tiles whose k-blocks several blocks share, see SharedTiles; partials: memory for their sums.
extern "C" int sparsefront_gathered_sm90_persistent(const void* x, const void* panels, const void* k_blocks, const void* work,
                                         const void* work_begin, const void* shared, void* partials, const void* outputs,
                                         const void* bias, const void* residual, void* y, long long x_stride,
                                         long long residual_stride, long long y_stride, int bias_type, int activation,
                                         int y_row_major, int is_bfloat16, int halved, int m, int y_m, int widest, int blocks,
                                         int shared_count, int pdl, void* stream) {
    if (x_stride >= (1ll << 31)) return cudaErrorInvalidValue;
    Epilogue epilogue{static_cast<const int*>(outputs), bias, bias_type, activation, {}, residual, residual_stride, y, y_stride,
                      y_m, y_row_major};
    std::copy_n(GELU_COEFFICIENTS[activation == GELU_TANH], std::size(epilogue.gelu), epilogue.gelu);
    const Problem problem{x,
                          static_cast<const uint8_t*>(panels),
                          static_cast<const int*>(k_blocks),
                          static_cast<const int4*>(work),
                          static_cast<const int*>(work_begin),
                          static_cast<float4*>(partials),
                          epilogue,
                          static_cast<unsigned>(2 * x_stride),
                          m};
    const SharedTiles tiles{static_cast<const int4*>(shared), problem.partials, epilogue, shared_count};
    const Launch how{blocks, pdl != 0, static_cast<cudaStream_t>(stream)};
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, tiles, halved, widest, how)
                       : launch<__half>(problem, tiles, halved, widest, how);
}
