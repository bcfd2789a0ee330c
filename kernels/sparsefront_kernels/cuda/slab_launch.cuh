// From the numbers that Python hands over to a slab kernel of a type and a block.
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
    int m, k, groups, block, quads, slab_count;
    int sets, warps, splits, slabs, lane_units, shared_bytes, dependent_launch;  // lane_units: 1, or 2 for single weights
};

// rows: of X, of a block; together: groups that a warp multiplies by at once.
template <typename Kernel>
cudaError_t launch(Kernel kernel, const Problem& problem, int rows, int together, const Arguments& given, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    if (given.splits > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(given.splits), 1, 1};
    }
    if (given.dependent_launch != streams::OFF) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    const int of_block = together * given.warps * given.sets;
    config.gridDim = dim3((given.groups + of_block - 1) / of_block * given.splits, (given.m + rows - 1) / rows);
    config.blockDim = dim3(LANES * given.warps);
    config.dynamicSmemBytes = given.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    if (given.warps > MOST_WARPS || given.splits < 1 || given.splits > MOST_SPLITS || given.sets < 1 || given.slabs < 1 || config.gridDim.y > 65535)
        return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, given.shared_bytes);
    return error == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, problem) : error;
}

template <typename Kernels, typename T>
cudaError_t launch_block(const Problem& problem, const Arguments& given, cudaStream_t stream) {
    if (given.block == 1 && given.lane_units == 2)
        return launch(Kernels::template kernel<T, 1, 2>(), problem, ROWS<T>, TOGETHER<2>, given, stream);
    if (given.lane_units != 1) return cudaErrorInvalidValue;
    if (given.block == 1) return launch(Kernels::template kernel<T, 1, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
    if constexpr (Kernels::BLOCKS) {
        if (given.block == 2) return launch(Kernels::template kernel<T, 2, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
        if (given.block == 4) return launch(Kernels::template kernel<T, 4, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
    }
    return cudaErrorInvalidValue;
}

// Kernels: kernel<T, BLOCK, LANE_UNITS>() gives a __global__ function; BLOCKS: whether there are blocks of 2 and 4 too.
template <typename Kernels>
cudaError_t launch_any(const Arguments& given, void* stream) {
    const Problem problem{{given.x, given.row_stride, given.input_stride, given.m, given.k, given.vectors},
                          {given.values, static_cast<const uint16_t*>(given.places), static_cast<const int*>(given.pointers), given.quads},
                          {given.y, given.bias, given.bias_type, static_cast<const int*>(given.order), given.m, given.groups},
                          given.slab_count,
                          given.sets,
                          given.splits,
                          given.slabs,
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
