// A GPU before Hopper, as host code sees it, to run code for one on a newer GPU: nvcc -include. No dependent launch then,
// since such code does not wait for the kernel before it.
#include <cuda_runtime.h>

inline cudaError_t attribute_before_hopper(int* value, cudaDeviceAttr attribute, int device) {
    const cudaError_t error = cudaDeviceGetAttribute(value, attribute, device);
    if (attribute == cudaDevAttrComputeCapabilityMajor) *value = 8;
    if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) *value = 166912;
    return error;
}

#define cudaDeviceGetAttribute attribute_before_hopper
