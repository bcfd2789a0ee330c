// Descriptors of tensors for the copy engine, made on the host.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

// A matrix of 16-bit elements in memory.
struct Matrix {
    const void* data;    // begins at a multiple of 16 bytes
    long long rows, columns;
    long long stride;    // elements from row to row, a multiple of 8
};

// Boxes of rows x columns, whose rows of 32, 64 or 128 bytes lie one after the other in shared memory, swizzled by that many
// bytes. Returns a cudaError_t.
inline cudaError_t make_tensor_map(CUtensorMap& map, const Matrix& matrix, unsigned box_rows, unsigned box_columns) {
    // by its name at run time: the library is linked with the CUDA runtime alone
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found{};
        const cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
        return error == cudaSuccess && found == cudaDriverEntryPointSuccess
                   ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)
                   : nullptr;
    }();
    if (encode == nullptr) return cudaErrorNotSupported;
    const CUtensorMapSwizzle swizzle = box_columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                           : CU_TENSOR_MAP_SWIZZLE_32B;
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(matrix.columns), static_cast<cuuint64_t>(matrix.rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(2 * matrix.stride)};
    const cuuint32_t box[2] = {box_columns, box_rows}, steps[2] = {1, 1};
    const CUresult result =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(matrix.data), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
