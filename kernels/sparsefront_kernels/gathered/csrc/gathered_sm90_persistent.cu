// Y[N, M] = activation(W[N, K] · X[K, M] + bias) + residual for a gathered weight on Hopper's tensor cores (sm_90a), where there
// are many rows: work tiles of 128 outputs x 256 columns.
//
// A block of the grid works through a list of tiles that was made on the host: blocks get equal work, whatever the lengths of
// the lists of kept inputs, and the last tiles are narrower (64, 128 or 192 columns). Four of its warps gather X and bring
// weights into the stages of a pipeline, two warpgroups multiply and store Y. See ../README.md.
#include <algorithm>
#include <iterator>

#include "persistent_consumer.cuh"
#include "persistent_producer.cuh"

namespace {

// Registers of a thread, by part, out of the 168 that each has at launch. With fewer, the warps that load compute one address at
// a time and wait for each copy to read it: 10 % slower.
// Places of halved weights are in registers too, of several stages at a time.
template <Weights WEIGHTS>
constexpr int CONSUMER_REGISTERS = WEIGHTS == Weights::ALL ? 208 : 216;
template <Weights WEIGHTS>
constexpr int PRODUCER_REGISTERS = WEIGHTS == Weights::ALL ? 88 : 72;

template <typename T, typename Y, Weights WEIGHTS>
__global__ void __launch_bounds__(THREADS, 1) gathered_sm90_persistent_kernel(const __grid_constant__ Problem problem) {
    static_assert(CONSUMERS * CONSUMER_REGISTERS<WEIGHTS> + PRODUCERS * PRODUCER_REGISTERS<WEIGHTS> <= THREADS * 168);
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * STAGES];
    __shared__ uint32_t uses_of_slots[STAGES];
    using Producer = Producer<WEIGHTS>;
    __shared__ alignas(16) typename Producer::Lists lists;
    const uint32_t stages = warp_uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // the swizzle repeats every 1024 bytes
    const uint32_t full = warp_uniform(shared_address(barriers)), empty = full + 8 * STAGES;
    const uint32_t slot_uses = warp_uniform(shared_address(uses_of_slots));
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < STAGES; ++slot) {
            barrier_init(full + 8 * slot, 32 * Producer::GROUP_WARPS + 1);
            barrier_init(empty + 8 * slot, CONSUMERS / 32);
        }
        fence_barrier_init();
    }
    __syncthreads();
    pdl_wait();
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS<WEIGHTS>));
        pdl_launch_dependents();
        consume<T, Y, WEIGHTS>(problem, stages, full, empty, slot_uses);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS<WEIGHTS>));
        Producer::run(problem, stages, full, empty, slot_uses, lists);
    }
}

template <typename T, typename Y, Weights WEIGHTS>
cudaError_t launch(const Problem& problem, int blocks, bool pdl, cudaStream_t stream) {
    constexpr auto kernel = gathered_sm90_persistent_kernel<T, Y, WEIGHTS>;
    constexpr int bytes = 1024 + STAGES * STAGE_BYTES;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = pdl;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

template <typename T, Weights WEIGHTS>
cudaError_t launch(const Problem& problem, int blocks, bool pdl, cudaStream_t stream) {
    return problem.epilogue.y_row_major ? launch<T, RowMajor<T>, WEIGHTS>(problem, blocks, pdl, stream)
                                        : launch<T, FeatureMajor<T>, WEIGHTS>(problem, blocks, pdl, stream);
}

template <typename T>
cudaError_t launch(const Problem& problem, bool halved, int blocks, bool pdl, cudaStream_t stream) {
    return halved ? launch<T, Weights::HALVED>(problem, blocks, pdl, stream) : launch<T, Weights::ALL>(problem, blocks, pdl, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment (16 bytes); m, the columns of X, is a multiple of 8, and of Y
// the first `y_m` are written. Strides are in elements. halved: whether panels hold two of every four inputs. Where Y is row-major, each
// eight `outputs` from a multiple of eight on are eight neighbours, the first a multiple of 8, or -1.
extern "C" int sparsefront_gathered_sm90_persistent(const void* x, const void* panels, const void* k_blocks, const void* work,
                                         const void* work_begin, const void* outputs,
                                         const void* bias, const void* residual, void* y, long long x_stride,
                                         long long residual_stride, long long y_stride, int bias_type, int activation,
                                         int y_row_major, int is_bfloat16, int halved, int m, int y_m, int blocks,
                                         int pdl, void* stream) {
    if (x_stride >= (1ll << 31)) return cudaErrorInvalidValue;
    Epilogue epilogue{static_cast<const int*>(outputs), bias, bias_type, activation, {}, residual, residual_stride, y, y_stride,
                      y_m, y_row_major};
    std::copy_n(GELU_COEFFICIENTS[activation == GELU_TANH], std::size(epilogue.gelu), epilogue.gelu);
    const Problem problem{x,
                          static_cast<const uint8_t*>(panels),
                          static_cast<const int*>(k_blocks),
                          static_cast<const int4*>(work),
                          static_cast<const int*>(work_begin),
                          epilogue,
                          static_cast<unsigned>(2 * x_stride),
                          m};
    const auto queue = static_cast<cudaStream_t>(stream);
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, halved, blocks, pdl, queue)
                       : launch<__half>(problem, halved, blocks, pdl, queue);
}
