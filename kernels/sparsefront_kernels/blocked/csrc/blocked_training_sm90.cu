// Training in blocks on Hopper's tensor cores (sm_90a): dW = dY[M, N]ᵀ · X[M, K] of the kept blocks of a weight, added up in float32,
// and float32 weights as the panels that the product by W, or by its transpose, reads.
//
// A side is 64 outputs by up to four boxes of 64 inputs that they keep. A block of the grid computes two sides for a part of the rows,
// one in each warpgroup, from a pipeline of 32 rows of dY and X, both of which lie as they are in memory: outputs and inputs are
// contiguous, and the rows are what products add up. Parts of the rows are added up by a second kernel. See ../README.md.
#include <cstdint>

#include "../../cuda/hopper.cuh"
#include "../../cuda/pipeline.cuh"
#include "../../cuda/tensor_copy.cuh"
#include "../../cuda/tensor_map.cuh"
#include "../../cuda/wgmma.cuh"

namespace {

constexpr int SIDE = 64;                 // outputs of a side, and inputs of a box
constexpr int MOST_BOXES = 4;            // of a side
constexpr int ROWS = 32;                 // of a stage
constexpr int BOX_BYTES = ROWS * SIDE * 2;
constexpr int X_BEGIN = 2 * BOX_BYTES;   // behind dY of both sides
constexpr int STAGE_BYTES = X_BEGIN + 2 * MOST_BOXES * BOX_BYTES;
constexpr int STAGES = 5;
constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 128;
constexpr int DYNAMIC_BYTES = 1024 + STAGES * STAGE_BYTES;
// Registers of a thread, by part, out of the 168 that each has at launch.
constexpr int CONSUMER_REGISTERS = 216, PRODUCER_REGISTERS = 72;
static_assert(CONSUMERS * CONSUMER_REGISTERS + 128 * PRODUCER_REGISTERS <= THREADS * 168);

struct Problem {
    CUtensorMap dy, x;     // boxes of 32 rows x 64 outputs or inputs
    const int4* sides;     // [pairs, 2]: first output, first box, number of boxes (0: there is no such side)
    const int2* boxes;     // first input, and where the first of its 64 x 64 values lies among all
    float* sums;           // [splits, values]
    long long values;
    int width;             // inputs of a block, from row to row of a gradient
    int rows, rows_per_split, pairs;
};

// The stages of this block's rows.
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
    const bool two_of_dy = other.z > 0 && other.x != one.x;
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

// Adds up all stages; acc is zero where there are none.
template <typename T, int BOXES>
__device__ __forceinline__ void add_up(float (&sums)[MOST_BOXES * SIDE / 2], int count, uint32_t stages, uint32_t full, uint32_t empty,
                                       uint32_t dy_place, uint32_t x_place) {
    constexpr int WIDTH = BOXES * SIDE;
    auto& acc = reinterpret_cast<float(&)[WIDTH / 2]>(sums);
    const bool leads = threadIdx.x % 32 == 0;
    Ring ring;
    int previous = -1;
    for (int i = 0; i < count; ++i) {
        const uint32_t stage = stages + ring.slot * STAGE_BYTES;
        barrier_wait(full + 8 * ring.slot, ring.phase);
        wgmma_fence();
#pragma unroll
        for (int sixteen = 0; sixteen < ROWS / 16; ++sixteen) {
            constexpr uint32_t step = 16 * 128 >> 4;
            wgmma<T, WIDTH>(acc, operand_descriptor(operand_place(stage + dy_place, BOX_BYTES) + sixteen * step),
                            operand_descriptor(operand_place(stage + x_place, BOX_BYTES) + sixteen * step), i > 0 || sixteen > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();  // the stage before this one has been read
        if (previous >= 0 && leads) barrier_arrive(empty + 8 * previous);
        previous = ring.slot;
        ring.advance(STAGES);
    }
    wgmma_wait<0>();
    fence_sums(acc);
}

template <typename T, int BOXES>
__device__ __forceinline__ void compute(const Problem& problem, float (&sums)[MOST_BOXES * SIDE / 2], const int4& side, int split, int count,
                                        uint32_t stages, uint32_t full, uint32_t empty, uint32_t dy_place, uint32_t x_place) {
    add_up<T, BOXES>(sums, count, stages, full, empty, dy_place, x_place);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        const int place = __ldg(problem.boxes + side.y + box).y;
        float* target = problem.sums + split * problem.values + place + static_cast<long long>(row) * problem.width + column;
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
    const uint32_t stages = warp_uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // the swizzle repeats every 1024 bytes
    const uint32_t full = warp_uniform(shared_address(barriers)), empty = full + 8 * STAGES;
    const int pair = blockIdx.x % problem.pairs, split = blockIdx.x / problem.pairs;
    const int first_row = split * problem.rows_per_split;
    const int4 one = __ldg(problem.sides + 2 * pair), other = __ldg(problem.sides + 2 * pair + 1);
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&problem.dy);
        prefetch_tensor_map(&problem.x);
        for (int slot = 0; slot < STAGES; ++slot) {
            barrier_init(full + 8 * slot, 1);
            barrier_init(empty + 8 * slot, (other.z > 0 ? 2 : 1) * 4);  // a lane of each warp that multiplies
        }
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int half = static_cast<int>(warp_uniform(threadIdx.x / 128));
        const int4 side = half == 0 ? one : other;
        const uint32_t dy_place = half == 1 && other.x != one.x ? BOX_BYTES : 0, x_place = X_BEGIN + half * MOST_BOXES * BOX_BYTES;
        const int count = stages_of(problem, first_row);
        float sums[MOST_BOXES * SIDE / 2];
        switch (side.z) {
            case 4: compute<T, 4>(problem, sums, side, split, count, stages, full, empty, dy_place, x_place); break;
            case 3: compute<T, 3>(problem, sums, side, split, count, stages, full, empty, dy_place, x_place); break;
            case 2: compute<T, 2>(problem, sums, side, split, count, stages, full, empty, dy_place, x_place); break;
            case 1: compute<T, 1>(problem, sums, side, split, count, stages, full, empty, dy_place, x_place); break;
            default: break;
        }
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == CONSUMERS) produce(problem, one, other, first_row, stages, full, empty);
    }
}

// The sums of all parts of the rows, in their order; four values to a thread.
__global__ void __launch_bounds__(256) add_splits_kernel(const float4* sums, float4* gradient, long long fours, int splits) {
    const long long i = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
    if (i >= fours) return;
    float4 total = sums[i];
    for (int split = 1; split < splits; ++split) {
        const float4 part = sums[split * fours + i];
        total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    gradient[i] = total;
}

template <typename T>
cudaError_t launch(const Problem& problem, float* gradient, int splits, cudaStream_t stream) {
    const auto kernel = blocked_gradient_kernel<T>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DYNAMIC_BYTES);
    if (error != cudaSuccess) return error;
    kernel<<<problem.pairs * splits, THREADS, DYNAMIC_BYTES, stream>>>(problem);
    if (splits > 1) {
        const long long fours = problem.values / 4;
        add_splits_kernel<<<static_cast<unsigned>((fours + 255) / 256), 256, 0, stream>>>(
            reinterpret_cast<const float4*>(problem.sums), reinterpret_cast<float4*>(gradient), fours, splits);
    }
    return cudaGetLastError();
}

__device__ __forceinline__ uint32_t rounded(float a, float b, __half) {
    const __half2 pair = __floats2half2_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ uint32_t rounded(float a, float b, __nv_bfloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
}

// A panel of 64 x 64 values for each block of the grid, swizzled as wgmma reads it: eight neighbors c of row r lie at c ^ (r % 8).
template <typename T, bool TRANSPOSED>
__global__ void __launch_bounds__(256) pack_panels_kernel(const float* values, const long long* sources, uint4* panels, int width) {
    __shared__ float tile[SIDE][SIDE + 1];
    const float* source = values + sources[blockIdx.x];
    if constexpr (TRANSPOSED) {
        for (int i = threadIdx.x; i < SIDE * SIDE; i += 256)
            tile[i / SIDE][i % SIDE] = source[static_cast<long long>(i / SIDE) * width + i % SIDE];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < SIDE * SIDE / 8; i += 256) {
        const int row = TRANSPOSED ? i % SIDE : i / 8, eight = TRANSPOSED ? i / SIDE : i % 8;
        float v[8];
        if constexpr (TRANSPOSED) {
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] = tile[eight * 8 + j][row];
        } else {
            const float4* fours = reinterpret_cast<const float4*>(source + static_cast<long long>(row) * width + eight * 8);
            const float4 first = fours[0], second = fours[1];
            v[0] = first.x, v[1] = first.y, v[2] = first.z, v[3] = first.w;
            v[4] = second.x, v[5] = second.y, v[6] = second.z, v[7] = second.w;
        }
        const uint4 packed{rounded(v[0], v[1], T()), rounded(v[2], v[3], T()), rounded(v[4], v[5], T()), rounded(v[6], v[7], T())};
        panels[static_cast<long long>(blockIdx.x) * (SIDE * SIDE / 8) + row * 8 + (eight ^ row % 8)] = packed;
    }
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment: dY and X begin at a multiple of 16 bytes, and their rows are a
// multiple of 8 elements apart; n, k and `width` are multiples of 64. Strides are in elements.
// sums: [splits, values], the gradient itself where there is one split.
extern "C" int sparsefront_blocked_gradient_sm90(const void* dy, const void* x, void* sums, void* gradient, const void* sides,
                                                 const void* boxes, long long dy_stride, long long x_stride, long long values,
                                                 int is_bfloat16, int m, int n, int k, int width, int pairs, int splits,
                                                 int rows_per_split, void* stream) {
    if (rows_per_split % ROWS != 0) return cudaErrorInvalidValue;
    Problem problem{};
    cudaError_t error = make_tensor_map(problem.dy, Matrix{dy, m, n, dy_stride}, ROWS, SIDE);
    if (error == cudaSuccess) error = make_tensor_map(problem.x, Matrix{x, m, k, x_stride}, ROWS, SIDE);
    if (error != cudaSuccess) return error;
    problem.sides = static_cast<const int4*>(sides);
    problem.boxes = static_cast<const int2*>(boxes);
    problem.sums = static_cast<float*>(sums);
    problem.values = values, problem.width = width;
    problem.rows = m, problem.rows_per_split = rows_per_split, problem.pairs = pairs;
    const auto queue = static_cast<cudaStream_t>(stream);
    const auto target = static_cast<float*>(gradient);
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, target, splits, queue) : launch<__half>(problem, target, splits, queue);
}

// Panels [panels, 64, 64] of W, or of Wᵀ where `transposed`, from values whose rows of a block are `width` apart. sources: of each
// panel the place of its first value. Returns a cudaError_t.
extern "C" int sparsefront_blocked_pack_sm90(const void* values, const void* sources, void* panels, int is_bfloat16, int transposed,
                                             int width, int count, void* stream) {
    using Kernel = void (*)(const float*, const long long*, uint4*, int);
    const Kernel kernels[2][2] = {{pack_panels_kernel<__half, false>, pack_panels_kernel<__half, true>},
                                  {pack_panels_kernel<__nv_bfloat16, false>, pack_panels_kernel<__nv_bfloat16, true>}};
    kernels[is_bfloat16][transposed]<<<count, 256, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(values), static_cast<const long long*>(sources), static_cast<uint4*>(panels), width);
    return cudaGetLastError();
}
