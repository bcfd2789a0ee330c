// TMA descriptors, encoded on the host.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

// A matrix of 16-bit elements in global memory.
struct Matrix {
    const void* data;    // 16-byte aligned
    long long rows, columns;
    long long stride;    // row stride in elements, a multiple of 8
};

// A convolution over images [n, h, w, c] of 16-bit elements in global memory; c is a multiple of 8.
struct Images {
    const void* data;    // 16-byte aligned
    int n, h, w, c;
    int filter_h, filter_w;
    int stride_h, stride_w;
    int padding_h, padding_w;
    int dilation_h, dilation_w;
    int out_h, out_w;
};

// Looks up a driver function at run time, since libraries link only the CUDA runtime. Null if it is missing.
template <typename Function>
inline Function driver_function(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(function) : nullptr;
}

// Descriptor for `copy_pixels`: boxes of `pixels` rows x 64 channels, 128 bytes per row, 128-byte swizzle. Returns a
// cudaError_t.
inline cudaError_t make_image_map(CUtensorMap& map, const Images& images, unsigned pixels) {
    static const auto encode = driver_function<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
    if (encode == nullptr) return cudaErrorNotSupported;
    const auto bytes = [](long long elements) { return static_cast<cuuint64_t>(2 * elements); };
    const long long row = static_cast<long long>(images.w) * images.c;
    const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(images.c), static_cast<cuuint64_t>(images.w),
                                 static_cast<cuuint64_t>(images.h), static_cast<cuuint64_t>(images.n)};
    const cuuint64_t strides[3] = {bytes(images.c), bytes(row), bytes(row * images.h)};
    // bounding box of the filter's first tap: from the padding on, to where the last tap reaches the far edge of the
    // padding
    const int lower[2] = {-images.padding_w, -images.padding_h};
    const int upper[2] = {images.padding_w - (images.filter_w - 1) * images.dilation_w,
                          images.padding_h - (images.filter_h - 1) * images.dilation_h};
    const cuuint32_t steps[4] = {1, static_cast<cuuint32_t>(images.stride_w), static_cast<cuuint32_t>(images.stride_h), 1};
    const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void*>(images.data), sizes, strides, lower,
                                   upper, 64, pixels, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Descriptor for boxes of box_rows x box_columns. In shared memory their rows of 32, 64 or 128 bytes are contiguous,
// with a swizzle of the same width. Returns a cudaError_t.
inline cudaError_t make_tensor_map(CUtensorMap& map, const Matrix& matrix, unsigned box_rows, unsigned box_columns) {
    static const auto encode = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
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
