// Training with blocked weights on Hopper's wgmma (sm_90a). Two kernels: the gradient dW = dY[M, N]ᵀ · X[M, K] of the
// kept blocks, accumulated in float32; and packing of float32 weights into the panels that the products by W and by Wᵀ
// read.
//
// A side is 64 outputs by up to four boxes of 64 kept inputs. A CTA computes two sides, one per consumer warpgroup, for
// a part of the rows (split over M, the reduction dimension here). Pipeline stages hold 32 rows of dY and X as they are
// in global memory: outputs and inputs are contiguous, so both operands are MN-major. While wgmma runs, one side per 64
// outputs also adds up the rows of dY, which is the gradient of the bias. A second kernel adds up the parts of the
// rows. See ../README.md.
#include <cstdint>

#include "../../cuda/hopper.cuh"
#include "../../cuda/pipeline.cuh"
#include "../../cuda/tensor_copy.cuh"
#include "../../cuda/tensor_map.cuh"
#include "../../cuda/wgmma.cuh"

namespace {

constexpr int SIDE = 64;                 // outputs per side, and inputs per box
constexpr int MOST_BOXES = 4;            // per side
constexpr int ROWS = 32;                 // rows of dY and X per pipeline stage
constexpr int BOX_BYTES = ROWS * SIDE * 2;
constexpr int X_BEGIN = 2 * BOX_BYTES;   // after dY of both sides
constexpr int STAGE_BYTES = X_BEGIN + 2 * MOST_BOXES * BOX_BYTES;
constexpr int STAGES = 5;
constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 128;
constexpr int DYNAMIC_BYTES = 1024 + STAGES * STAGE_BYTES;
// Registers per thread and role, redistributed by setmaxnreg from the 168 that each thread has at launch.
constexpr int CONSUMER_REGISTERS = 216, PRODUCER_REGISTERS = 72;
static_assert(CONSUMERS * CONSUMER_REGISTERS + 128 * PRODUCER_REGISTERS <= THREADS * 168);

struct Problem {
    CUtensorMap dy, x;     // boxes of 32 rows x 64 outputs or 64 inputs
    // [pairs, 2]: first output, first box, number of boxes, whether it adds up dY; the second side may be empty
    const int4* sides;
    const int2* boxes;     // first input, and offset of the first of its 64 x 64 values among all values
    float* sums;           // partial sums of all values, for each split
    float* bias;           // same for the column sums of dY, or null
    long long stride;      // from split to split, in floats
    int width;             // inputs of a block: row stride of the gradient's values
    int rows, rows_per_split, pairs;
};

__device__ __forceinline__ bool works(const int4& side) { return side.z > 0 || side.w > 0; }

// Number of pipeline stages for this CTA's rows.
__device__ __forceinline__ int stages_of(const Problem& problem, int first_row) {
    const int left = min(problem.rows - first_row, problem.rows_per_split);
    return max(0, (left + ROWS - 1) / ROWS);
}

__device__ __forceinline__ void produce(const Problem& problem, int4 one, int4 other, int first_row, uint32_t stages, uint32_t full,
                                        uint32_t empty) {
    int input[2 * MOST_BOXES];
#pragma unroll
    for (int box = 0; box < MOST_BOXES; ++box) {
        input[box] = box < one.z ? __ldg(problem.boxes + one.y + box).x : 0;
        input[MOST_BOXES + box] = box < other.z ? __ldg(problem.boxes + other.y + box).x : 0;
    }
    const bool two_of_dy = works(other) && other.x != one.x;
    const uint32_t bytes = (1 + two_of_dy + one.z + other.z) * BOX_BYTES;
    const int count = stages_of(problem, first_row);
    Ring ring;
    for (int i = 0; i < count; ++i) {
        const int row = first_row + i * ROWS;
        const uint32_t stage = stages + ring.slot * STAGE_BYTES, ready = full + 8 * ring.slot;
        barrier_wait(empty + 8 * ring.slot, ring.phase ^ 1);
        barrier_arrive_expect(ready, bytes);
        copy_box(stage, &problem.dy, one.x, row, ready);
        if (two_of_dy) copy_box(stage + BOX_BYTES, &problem.dy, other.x, row, ready);
#pragma unroll
        for (int box = 0; box < 2 * MOST_BOXES; ++box)
            if (box % MOST_BOXES < (box < MOST_BOXES ? one.z : other.z))
                copy_box(stage + X_BEGIN + box * BOX_BYTES, &problem.x, input[box], row, ready);
        ring.advance(STAGES);
    }
}

// Unpacks the two numbers of a word.
__device__ __forceinline__ float2 both(uint32_t word, __half) { return __half22float2(reinterpret_cast<const __half2&>(word)); }
__device__ __forceinline__ float2 both(uint32_t word, __nv_bfloat16) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
}

// Adds a stage's rows of dY to this thread's sums of eight neighboring outputs: thread t takes 8-output group t % 8 of
// rows t / 8 and t / 8 + 16.
template <typename T>
__device__ __forceinline__ void add_rows(float (&rows)[8], uint32_t dy) {
    const int eight = threadIdx.x % 8, first = threadIdx.x % 128 / 8;
#pragma unroll
    for (int row = first; row < ROWS; row += 16) {
        const float4 loaded = load_16_bytes(dy + row * 128 + ((eight ^ row % 8) << 4));
        const uint32_t words[4] = {__float_as_uint(loaded.x), __float_as_uint(loaded.y), __float_as_uint(loaded.z),
                                   __float_as_uint(loaded.w)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = both(words[i], T());
            rows[2 * i] += pair.x, rows[2 * i + 1] += pair.y;
        }
    }
}

// Accumulates all stages. If there are none, acc is uninitialized.
template <typename T, int BOXES>
__device__ __forceinline__ void add_up(float (&sums)[MOST_BOXES * SIDE / 2], float (&rows)[8], bool adds_rows, int count, uint32_t stages,
                                       uint32_t full, uint32_t empty, uint32_t dy_place, uint32_t x_place) {
    constexpr int WIDTH = BOXES > 0 ? BOXES * SIDE : SIDE;
    auto& acc = reinterpret_cast<float(&)[WIDTH / 2]>(sums);
    const bool leads = threadIdx.x % 32 == 0;
    Ring ring;
    int previous = -1;
    for (int i = 0; i < count; ++i) {
        const uint32_t stage = stages + ring.slot * STAGE_BYTES;
        barrier_wait(full + 8 * ring.slot, ring.phase);
        if constexpr (BOXES > 0) {
            wgmma_fence();
#pragma unroll
            for (int sixteen = 0; sixteen < ROWS / 16; ++sixteen) {
                constexpr uint32_t step = 16 * 128 >> 4;
                wgmma<T, WIDTH>(acc, operand_descriptor(operand_place(stage + dy_place, BOX_BYTES) + sixteen * step),
                                operand_descriptor(operand_place(stage + x_place, BOX_BYTES) + sixteen * step), i > 0 || sixteen > 0);
            }
            wgmma_commit();
        }
        if (adds_rows) add_rows<T>(rows, stage + dy_place);
        if constexpr (BOXES > 0) wgmma_wait<1>();  // the wgmma of the previous stage has finished reading it
        __syncwarp();
        if (previous >= 0 && leads) barrier_arrive(empty + 8 * previous);
        previous = ring.slot;
        ring.advance(STAGES);
    }
    if constexpr (BOXES > 0) {
        wgmma_wait<0>();
        fence_sums(acc);
    }
}

// Stores the column sums of dY for 64 outputs: reduces four rows per warp by shuffles, then the four warps through
// shared memory.
__device__ __forceinline__ void store_rows(float (&rows)[8], float* target, float* shared, uint32_t barrier) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        rows[i] += __shfl_xor_sync(~0u, rows[i], 8);
        rows[i] += __shfl_xor_sync(~0u, rows[i], 16);
        if (threadIdx.x % 32 < 8) shared[threadIdx.x % 128 / 32 * SIDE + threadIdx.x % 8 * 8 + i] = rows[i];
    }
    warpgroup_sync(barrier);
    const int output = threadIdx.x % 128;
    if (output < SIDE) target[output] = shared[output] + shared[SIDE + output] + shared[2 * SIDE + output] + shared[3 * SIDE + output];
}

template <typename T, int BOXES>
__device__ __forceinline__ void compute(const Problem& problem, float (&sums)[MOST_BOXES * SIDE / 2], const int4& side, int half, int split,
                                        int count, uint32_t stages, uint32_t full, uint32_t empty, uint32_t dy_place, float* shared) {
    const bool adds_rows = side.w > 0 && problem.bias != nullptr;
    float rows[8] = {};
    add_up<T, BOXES>(sums, rows, adds_rows, count, stages, full, empty, dy_place, X_BEGIN + half * MOST_BOXES * BOX_BYTES);
    if (adds_rows) store_rows(rows, problem.bias + split * problem.stride + side.x, shared + half * 4 * SIDE, 1 + half);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        const int place = __ldg(problem.boxes + side.y + box).y;
        float* target = problem.sums + split * problem.stride + place + static_cast<long long>(row) * problem.width + column;
#pragma unroll
        for (int eight = 0; eight < SIDE / 8; ++eight)
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
                const int i = (box * SIDE / 8 + eight) * 4 + lower * 2;
                const float2 pair = count > 0 ? make_float2(sums[i], sums[i + 1]) : make_float2(0.0f, 0.0f);
                *reinterpret_cast<float2*>(target + static_cast<long long>(lower) * 8 * problem.width + eight * 8) = pair;
            }
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1) blocked_gradient_kernel(const __grid_constant__ Problem problem) {
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * STAGES];
    __shared__ float sums_of_dy[2 * 4 * SIDE];
    const uint32_t stages = warp_uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // swizzle atoms are 1024 bytes
    const uint32_t full = warp_uniform(shared_address(barriers)), empty = full + 8 * STAGES;
    const int pair = blockIdx.x % problem.pairs, split = blockIdx.x / problem.pairs;
    const int first_row = split * problem.rows_per_split;
    const int4 one = __ldg(problem.sides + 2 * pair), other = __ldg(problem.sides + 2 * pair + 1);
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&problem.dy);
        prefetch_tensor_map(&problem.x);
        for (int slot = 0; slot < STAGES; ++slot) {
            barrier_init(full + 8 * slot, 1);
            barrier_init(empty + 8 * slot, (works(other) ? 2 : 1) * 4);  // one lane of each consumer warp arrives
        }
        fence_barrier_init();
    }
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int half = static_cast<int>(warp_uniform(threadIdx.x / 128));
        const int4 side = half == 0 ? one : other;
        const uint32_t dy_place = half == 1 && other.x != one.x ? BOX_BYTES : 0;
        const int count = stages_of(problem, first_row);
        float sums[MOST_BOXES * SIDE / 2];
        switch (works(side) ? side.z : -1) {
            case 4: compute<T, 4>(problem, sums, side, half, split, count, stages, full, empty, dy_place, sums_of_dy); break;
            case 3: compute<T, 3>(problem, sums, side, half, split, count, stages, full, empty, dy_place, sums_of_dy); break;
            case 2: compute<T, 2>(problem, sums, side, half, split, count, stages, full, empty, dy_place, sums_of_dy); break;
            case 1: compute<T, 1>(problem, sums, side, half, split, count, stages, full, empty, dy_place, sums_of_dy); break;
            case 0: compute<T, 0>(problem, sums, side, half, split, count, stages, full, empty, dy_place, sums_of_dy); break;
            default: break;
        }
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == CONSUMERS) produce(problem, one, other, first_row, stages, full, empty);
    }
}

// Adds up the splits in order, four sums per thread. The sums of the values come first, then those of the bias.
__global__ void __launch_bounds__(256) add_splits_kernel(const float4* sums, float4* gradient, float4* bias, long long of_values,
                                                         long long all, int splits) {
    pdl_wait();
    pdl_launch_dependents();
    const long long i = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
    if (i >= all) return;
    float4 total = sums[i];
#pragma unroll 4
    for (int split = 1; split < splits; ++split) {
        const float4 part = sums[split * all + i];
        total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    (i < of_values ? gradient[i] : bias[i - of_values]) = total;
}

// Launches with PDL: the kernel itself waits for its predecessors in the stream.
template <typename... Types, typename... Arguments>
cudaError_t launch_dependent(void (*kernel)(Types...), long long blocks, int threads, int bytes, cudaStream_t stream,
                             Arguments... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks)), config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes, config.stream = stream;
    config.attrs = &attribute, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Types>(arguments)...);
}

template <typename T>
cudaError_t launch(const Problem& problem, float* gradient, float* bias, long long values, int splits, cudaStream_t stream) {
    const auto kernel = blocked_gradient_kernel<T>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DYNAMIC_BYTES);
    const long long blocks = static_cast<long long>(problem.pairs) * splits;
    if (error == cudaSuccess) error = launch_dependent(kernel, blocks, THREADS, DYNAMIC_BYTES, stream, problem);
    if (error == cudaSuccess && splits > 1)
        error = launch_dependent(add_splits_kernel, (problem.stride / 4 + 255) / 256, 256, 0, stream,
                                 reinterpret_cast<const float4*>(problem.sums), reinterpret_cast<float4*>(gradient),
                                 reinterpret_cast<float4*>(bias), values / 4, problem.stride / 4, splits);
    return error;
}

__device__ __forceinline__ uint32_t rounded(float a, float b, __half) {
    const __half2 pair = __floats2half2_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ uint32_t rounded(float a, float b, __nv_bfloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
}

// Packs panels of W and of Wᵀ, one 64 x 64 box of values per CTA, swizzled as wgmma reads them: 8-element chunk c of
// row r is stored at chunk c ^ (r % 8). targets: offset of the values, panel of W, panel of Wᵀ.
template <typename T>
__global__ void __launch_bounds__(256) pack_panels_kernel(const float* values, const int4* targets, uint4* panels, uint4* transposed,
                                                          int width) {
    __shared__ float tile[SIDE][SIDE + 1];
    constexpr int EIGHTS = SIDE * SIDE / 8;
    pdl_wait();
    pdl_launch_dependents();
    const int4 target = targets[blockIdx.x];
    const float* source = values + target.x;
#pragma unroll
    for (int i = threadIdx.x; i < EIGHTS; i += 256) {
        const int row = i / 8, eight = i % 8;
        const float4* fours = reinterpret_cast<const float4*>(source + static_cast<long long>(row) * width + eight * 8);
        const float4 a = fours[0], b = fours[1];
        const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) tile[row][eight * 8 + j] = v[j];
        const uint4 packed{rounded(v[0], v[1], T()), rounded(v[2], v[3], T()), rounded(v[4], v[5], T()), rounded(v[6], v[7], T())};
        panels[static_cast<long long>(target.y) * EIGHTS + row * 8 + (eight ^ row % 8)] = packed;
    }
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x; i < EIGHTS; i += 256) {
        const int row = i / 8, eight = i % 8;  // of the transpose
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = tile[eight * 8 + j][row];
        const uint4 packed{rounded(v[0], v[1], T()), rounded(v[2], v[3], T()), rounded(v[4], v[5], T()), rounded(v[6], v[7], T())};
        transposed[static_cast<long long>(target.z) * EIGHTS + row * 8 + (eight ^ row % 8)] = packed;
    }
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment: dY and X are 16-byte aligned, with row strides that
// are multiples of 8 elements; n, k and `width` are multiples of 64. Strides are in elements.
// gradient: one float32 per value; bias: [n], the column sums of dY, or null. sums: scratch for several splits, for
// each of them all values and, if there is a bias, n more; else null.
extern "C" int sparsefront_blocked_gradient_sm90(const void* dy, const void* x, void* sums, void* gradient, void* bias, const void* sides,
                                                 const void* boxes, long long dy_stride, long long x_stride, long long values,
                                                 int is_bfloat16, int m, int n, int k, int width, int pairs, int splits,
                                                 int rows_per_split, void* stream) {
    if (rows_per_split % ROWS != 0) return cudaErrorInvalidValue;
    Problem problem{};
    cudaError_t error = make_tensor_map(problem.dy, Matrix{dy, m, n, dy_stride}, ROWS, SIDE);
    if (error == cudaSuccess) error = make_tensor_map(problem.x, Matrix{x, m, k, x_stride}, ROWS, SIDE);
    if (error != cudaSuccess) return error;
    const auto of_values = static_cast<float*>(gradient), of_bias = static_cast<float*>(bias), parts = static_cast<float*>(sums);
    problem.sides = static_cast<const int4*>(sides);
    problem.boxes = static_cast<const int2*>(boxes);
    problem.sums = splits > 1 ? parts : of_values;
    problem.bias = bias == nullptr ? nullptr : splits > 1 ? parts + values : of_bias;
    problem.stride = values + (bias == nullptr ? 0 : n), problem.width = width;
    problem.rows = m, problem.rows_per_split = rows_per_split, problem.pairs = pairs;
    const auto queue = static_cast<cudaStream_t>(stream);
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, of_values, of_bias, values, splits, queue)
                       : launch<__half>(problem, of_values, of_bias, values, splits, queue);
}

// Packs panels [boxes, 64, 64] of W and of Wᵀ, from blocks of values with row stride `width`. Returns a cudaError_t.
extern "C" int sparsefront_blocked_pack_sm90(const void* values, const void* targets, void* panels, void* transposed, int is_bfloat16,
                                             int width, int boxes, void* stream) {
    const auto kernel = is_bfloat16 ? pack_panels_kernel<__nv_bfloat16> : pack_panels_kernel<__half>;
    return launch_dependent(kernel, boxes, 256, 0, static_cast<cudaStream_t>(stream), static_cast<const float*>(values),
                            static_cast<const int4*>(targets), static_cast<uint4*>(panels), static_cast<uint4*>(transposed), width);
}
