// One warpgroup multiplies one panel of 64 outputs x 64 inputs, of which it holds half, by 64 rows of X: what wgmma.cuh says of
// the layouts, and nothing else.
#include "../../../kernels/sparsefront_kernels/cuda/hopper.cuh"
#include "../../../kernels/sparsefront_kernels/cuda/wgmma.cuh"

namespace {

constexpr int X_BYTES = 64 * 64 * 2;

template <typename T, int ORDER>
__global__ void __launch_bounds__(128) sparse_wgmma_kernel(const uint4* panel, const uint4* x, float* y) {
    __shared__ alignas(1024) uint8_t shared[X_BYTES + HALVED_PANEL_BYTES];
    for (int i = threadIdx.x; i < X_BYTES / 16; i += 128) reinterpret_cast<uint4*>(shared)[i] = x[i];
    for (int i = threadIdx.x; i < HALVED_PANEL_BYTES / 16; i += 128) reinterpret_cast<uint4*>(shared + X_BYTES)[i] = panel[i];
    fence_for_tensor_cores();
    __syncthreads();
    const uint32_t right = warp_uniform(shared_address(shared)), left = right + X_BYTES;
    const uint32_t places = load_word(left + HALVED_VALUE_BYTES + threadIdx.x * 4);
    float sums[32];
    wgmma_fence();
    for (int instruction = 0; instruction < 2; ++instruction) {
        const uint64_t values = k_major_descriptor<64>(left + instruction * 32);
        const uint64_t rows = ORDER == K_MAJOR ? k_major_descriptor<128>(right + instruction * 64)
                                               : operand_descriptor(operand_place(right + instruction * 32 * 128, 0));
        if (instruction == 0) {
            sparse_wgmma<T, 64, 0, ORDER>(sums, values, rows, places, 0);
        } else {
            sparse_wgmma<T, 64, 1, ORDER>(sums, values, rows, places, 1);
        }
    }
    wgmma_commit();
    wgmma_wait<0>();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; ++i) y[(row + i % 4 / 2 * 8) * 64 + column + i / 4 * 8 + i % 2] = sums[i];
}

}  // namespace

// y: float [64 outputs, 64 rows of X]. x: 64 rows of 64 elements of 128 bytes, swizzled; rows of X, or inputs where `by_input`.
extern "C" int sparse_wgmma_probe(const void* panel, const void* x, void* y, int by_input, int is_bfloat16) {
    const auto kernel = is_bfloat16 ? (by_input ? sparse_wgmma_kernel<__nv_bfloat16, MN_MAJOR> : sparse_wgmma_kernel<__nv_bfloat16, K_MAJOR>)
                                    : (by_input ? sparse_wgmma_kernel<__half, MN_MAJOR> : sparse_wgmma_kernel<__half, K_MAJOR>);
    kernel<<<1, 128>>>(static_cast<const uint4*>(panel), static_cast<const uint4*>(x), static_cast<float*>(y));
    return cudaDeviceSynchronize();
}
