// How the float32 kernels begin: barriers of the ring, warps that load and warps that multiply, and the launch.
#pragma once
#include "../../cuda/epilogue_math.cuh"
#include "simt_work.cuh"

namespace {

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
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::PRODUCER_REGISTERS));
        if (threadIdx.x / 32 < count) produce(address, full, empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::CONSUMER_REGISTERS));
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
    config.numAttrs = problem.splits > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

}  // namespace
