// Small library that exercises what the others need of the toolchain: CUDA headers, Hopper instructions (sm_90a), the
// CUDA runtime. If it cannot be built or opened, neither can the others.
#include "hopper.cuh"
#include "wgmma.cuh"
#include "streams.cuh"
#include "tensor_copy.cuh"
#include "tensor_map.cuh"

namespace {

__global__ void __launch_bounds__(256) toolchain_kernel(const __grid_constant__ CUtensorMap map, float* y) {
    extern __shared__ __align__(1024) char shared[];
    const uint32_t memory = shared_address(shared), barrier = memory, data = memory + 1024;
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        fence_barrier_init();
        barrier_arrive_expect(barrier, 2048);
        copy_box(data, &map, 0, 0, barrier);
        copy_bulk_multicast(data, y, 1024, barrier, 3);
    }
    pdl_wait();
    cluster_sync();
    barrier_wait(barrier, 0);
    float sums[32] = {};
    wgmma_fence();
    wgmma<__half, 64>(sums, operand_descriptor(operand_place(data, 0)), operand_descriptor(operand_place(data, 0)), 0);
    sparse_wgmma<__nv_bfloat16, 64, 0, MN_MAJOR>(sums, k_major_descriptor<64>(data), operand_descriptor(operand_place(data, 0)), 0, 1);
    wgmma_commit();
    wgmma_wait<0>();
    fence_sums(sums);
    store_in_cluster(address_in_cluster(data, 1), sums, address_in_cluster(barrier, 1));
    y[threadIdx.x] = sums[0];
    pdl_launch_dependents();
}

}  // namespace

// Returns a cudaError_t.
extern "C" int sparsefront_toolchain(void* stream) {
    CUtensorMap map{};
    if (const cudaError_t error = make_tensor_map(map, Matrix{nullptr, 64, 64, 64}, 64, 64); error != cudaSuccess) return error;
    toolchain_kernel<<<1, 128, 4096, static_cast<cudaStream_t>(stream)>>>(map, nullptr);
    return cudaGetLastError();
}
