// From the numbers that Python hands over to a lane kernel of a type and a number of rows.
#pragma once

#include "lane_kernel.cuh"

namespace lanes {

// As common/lane_product.py lays it out.
struct Arguments {
    const void *x, *order, *values, *places, *bias;
    void* y;
    long long row_stride, input_stride;  // elements
    int vectors;
    int type, bias_type;  // 1 float, 2 half, 3 bfloat16; bias_type 0: none
    int m, n, k, kept, group_size, bits, block, strips, chunks;
    int block_strips, shares, splits, rows, segment, shared_bytes, dependent_launch, stages;
};

template <typename Kernels, typename T>
cudaError_t launch_rows(const Problem& problem, const Arguments& given, cudaStream_t stream) {
    switch (given.rows) {
        case 1: return launch(Kernels::template kernel<T, 1>(given), problem, 1, given.shared_bytes, given.shares, stream);
        case 2: return launch(Kernels::template kernel<T, 2>(given), problem, 2, given.shared_bytes, given.shares, stream);
        case 4: return launch(Kernels::template kernel<T, 4>(given), problem, 4, given.shared_bytes, given.shares, stream);
        case 8: return launch(Kernels::template kernel<T, 8>(given), problem, 8, given.shared_bytes, given.shares, stream);
        default: return cudaErrorInvalidValue;
    }
}

inline Problem problem_of(const Arguments& given) {
    return {{given.x, given.row_stride, given.input_stride, static_cast<const int*>(given.order), given.m, given.k, given.vectors},
            given.values,
            static_cast<const uint32_t*>(given.places),
            given.bias,
            given.bias_type,
            given.y,
            given.n,
            given.kept,
            given.group_size,
            given.strips,
            given.chunks,
            given.block_strips,
            given.splits,
            given.segment,
            given.dependent_launch,
            given.stages};
}

// Kernels: kernel<T, ROWS>(arguments) gives a __global__ function.
template <typename Kernels>
cudaError_t launch_any(const Arguments& given, void* stream) {
    const Problem problem = problem_of(given);
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (given.type) {
        case 1: return launch_rows<Kernels, float>(problem, given, queue);
        case 2: return launch_rows<Kernels, __half>(problem, given, queue);
        case 3: return launch_rows<Kernels, __nv_bfloat16>(problem, given, queue);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace lanes
