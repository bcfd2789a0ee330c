// From the numbers that Python hands over to a slab kernel of a type, a block and a number of groups.
#pragma once

#include "slab_kernel.cuh"

namespace slabs {

// As common/slab_product.py lays it out.
struct Arguments {
    const void *x, *values, *places, *pointers, *order, *bias;
    void* y;
    long long row_stride, input_stride;  // elements
    int vectors;
    int type, bias_type;  // 1 float, 2 half, 3 bfloat16; bias_type 0: none
    int m, k, groups, block, slab_count;
    int groups_of_warp, warps, stages, dependent_launch;  // groups_of_warp * block is at most 8
};

template <typename Kernels, typename T, int BLOCK, int GROUPS>
cudaError_t launch_groups(const Problem& problem, const Arguments& arguments, cudaStream_t stream) {
    if constexpr (BLOCK * GROUPS <= 8) {
        if (arguments.groups_of_warp == GROUPS)
            return launch(Kernels::template kernel<T, BLOCK, GROUPS>(), problem, ROWS<T>, GROUPS, arguments.warps, stream);
        return launch_groups<Kernels, T, BLOCK, 2 * GROUPS>(problem, arguments, stream);
    }
    return cudaErrorInvalidValue;
}

template <typename Kernels, typename T>
cudaError_t launch_block(const Problem& problem, const Arguments& arguments, cudaStream_t stream) {
    if (arguments.block == 1) return launch_groups<Kernels, T, 1, 1>(problem, arguments, stream);
    if constexpr (Kernels::BLOCKS) {
        if (arguments.block == 2) return launch_groups<Kernels, T, 2, 1>(problem, arguments, stream);
        if (arguments.block == 4) return launch_groups<Kernels, T, 4, 1>(problem, arguments, stream);
    }
    return cudaErrorInvalidValue;
}

// Kernels: kernel<T, BLOCK, GROUPS>() gives a __global__ function; BLOCKS: whether there are blocks of 2 and 4 too.
template <typename Kernels>
cudaError_t launch_any(const Arguments& given, void* stream) {
    const Problem problem{{given.x, given.row_stride, given.input_stride, given.m, given.k, given.vectors},
                          given.values,
                          static_cast<const uint16_t*>(given.places),
                          static_cast<const int*>(given.pointers),
                          static_cast<const int*>(given.order),
                          given.bias,
                          given.bias_type,
                          given.y,
                          given.groups,
                          given.slab_count,
                          given.stages,
                          given.dependent_launch};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (given.type) {
        case 1: return launch_block<Kernels, float>(problem, given, queue);
        case 2: return launch_block<Kernels, __half>(problem, given, queue);
        case 3: return launch_block<Kernels, __nv_bfloat16>(problem, given, queue);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace slabs
