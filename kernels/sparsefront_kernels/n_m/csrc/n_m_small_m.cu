// Y = X · W^T + bias for an n:m weight and few rows of X, on Hopper (sm_90a); half, bfloat16 and float. The kernel is that of
// ../../cuda/lane_kernel.cuh; see ../README.md.
#include "../../cuda/lane_kernel.cuh"

namespace {

// Of registers, so that enough warps are on an SM to have the stream of weights on its way.
template <typename T, int ROWS>
constexpr int BLOCKS_PER_SM = sizeof(T) == 2 && ROWS == 1 ? 3 : 2;

template <typename T, int BITS, int KEPT, int ROWS>
__global__ void __launch_bounds__(lanes::MOST_THREADS, BLOCKS_PER_SM<T, ROWS>)
    n_m_small_m_kernel(const __grid_constant__ lanes::Problem problem) {
    lanes::product<T, BITS, 1, KEPT, ROWS>(problem);
}

struct Shape {
    int bits, rows, shared_bytes, shares;
};

template <typename T, int BITS, int KEPT>
cudaError_t launch_rows(const lanes::Problem& problem, const Shape& shape, cudaStream_t stream) {
    switch (shape.rows) {
        case 1: return lanes::launch(n_m_small_m_kernel<T, BITS, KEPT, 1>, problem, 1, shape.shared_bytes, shape.shares, stream);
        case 2: return lanes::launch(n_m_small_m_kernel<T, BITS, KEPT, 2>, problem, 2, shape.shared_bytes, shape.shares, stream);
        case 4: return lanes::launch(n_m_small_m_kernel<T, BITS, KEPT, 4>, problem, 4, shape.shared_bytes, shape.shares, stream);
        case 8: return lanes::launch(n_m_small_m_kernel<T, BITS, KEPT, 8>, problem, 8, shape.shared_bytes, shape.shares, stream);
        default: return cudaErrorInvalidValue;
    }
}

template <typename T>
cudaError_t launch_bits(const lanes::Problem& problem, const Shape& shape, cudaStream_t stream) {
    switch (shape.bits) {
        case 2:
            if (problem.kept == 1) return launch_rows<T, 2, 1>(problem, shape, stream);
            if (problem.kept == 2) return launch_rows<T, 2, 2>(problem, shape, stream);
            return launch_rows<T, 2, 0>(problem, shape, stream);
        case 4: return launch_rows<T, 4, 0>(problem, shape, stream);
        case 5: return launch_rows<T, 5, 0>(problem, shape, stream);
        case 6: return launch_rows<T, 6, 0>(problem, shape, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace

// Returns a cudaError_t. Strides are in elements. The caller checks shapes, and that `shared_bytes` hold the inputs of a
// segment and all sums. type: 1 float, 2 half, 3 bfloat16; bias_type: 0 for none.
extern "C" int sparsefront_n_m_small_m(const void* x, const void* order, const void* values, const void* places, const void* bias, void* y,
                                       long long row_stride, long long input_stride, int vectors, int type, int bias_type, int m, int n,
                                       int k, int kept, int group_size, int bits, int strips, int granules, int block_strips, int shares,
                                       int splits, int rows, int segment, int shared_bytes, int dependent_launch, void* stream) {
    const lanes::Problem problem{{x, row_stride, input_stride, static_cast<const int*>(order), m, k, vectors},
                                 values,
                                 static_cast<const uint32_t*>(places),
                                 bias,
                                 bias_type,
                                 y,
                                 n,
                                 kept,
                                 group_size,
                                 strips,
                                 granules,
                                 block_strips,
                                 splits,
                                 segment,
                                 dependent_launch};
    const Shape shape{bits, rows, shared_bytes, shares};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (type) {
        case 1: return launch_bits<float>(problem, shape, queue);
        case 2: return launch_bits<__half>(problem, shape, queue);
        case 3: return launch_bits<__nv_bfloat16>(problem, shape, queue);
        default: return cudaErrorInvalidValue;
    }
}
