// Epilogue of the fp8 kernel: Y = activation(sums · scales + bias) + residual, from registers through shared memory by TMA; or e4m3
// with a scale per row and 128 outputs.
#pragma once

#include "../../cuda/rounded_epilogue.cuh"
#include "fp8_work.cuh"

namespace {

struct E4M3 {};  // tag: type of Y

template <typename T>
constexpr bool IS_QUANTIZED = std::is_same_v<T, E4M3>;

// Rounds two floats to e4m3, the first in the lower byte: nearest even, saturating; NaN stays NaN.
__device__ __forceinline__ uint32_t packed_e4m3(float first, float second) {
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
    return both;
}

// Same for two halves.
__device__ __forceinline__ uint32_t packed_e4m3(__half2 v) {
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(both) : "r"(reinterpret_cast<const uint32_t&>(v)));
    return both;
}

constexpr float LEAST_IN_HALF = 0x1p-7f, MOST_IN_HALF = 65504.0f;  // range of magnitudes whose quotients fit into half
constexpr float SMALLEST_SCALE = 0x1p-100f;                        // keeps the reciprocal finite

// Scale for values up to a magnitude, bitwise as in quantized/quantize.py.
__device__ __forceinline__ float scale_of(float size) {
    return size > 0.0f ? fmaxf(__fmul_rn(size, 1.0f / 448.0f), SMALLEST_SCALE) : 1.0f;
}

// Largest finite magnitude over LANES neighboring lanes. size: of the values v, ignoring NaN. Infinite values become NaN, since e4m3
// has no infinity.
template <int LANES, int COUNT>
__device__ __forceinline__ float largest_size(float size, float* v, int first, int step) {
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) size = fmaxf(size, __shfl_xor_sync(~0u, size, distance));
    if (!__any_sync(~0u, size == __int_as_float(0x7F800000))) return size;
    size = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        float& own = v[first + i / 2 * step + i % 2];
        if (fabsf(own) == __int_as_float(0x7F800000)) own = __int_as_float(0x7FC00000);
        size = fmaxf(size, fabsf(own));
    }
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) size = fmaxf(size, __shfl_xor_sync(~0u, size, distance));
    return size;
}

// Scale and bias of a tile's outputs, loaded during the previous tile in their stored types, so that nothing waits for them.
template <bool GROUPED>
struct Scales {
    float of_output = 0.0f, of_rows[2] = {1.0f, 1.0f};
    uint32_t stored_bias = 0;  // of the output with this thread's index, as is of_output

    __device__ __forceinline__ void load(const Problem& problem, const Tile& tile, int first_row) {
        const int own = threadIdx.x % 128, first = tile.output(own / HALF), output = first + own % HALF;
        of_output = first < 0 ? 0.0f : load_float_early(problem.w_scales + output);
        stored_bias = load_bias(problem.epilogue, first < 0 ? -1 : output);
        if constexpr (!GROUPED) {
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                const int row = first_row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + p * 8;
                of_rows[p] = load_x_scale(problem.x_scales + (row < problem.m ? row : 0));
            }
        }
    }
};

template <typename T, typename S>
struct Store {
    uint32_t buffer, columns, landed, name;
    bool leads;  // this thread issues the warpgroup's copies
    uint32_t phase = 0;

    __device__ __forceinline__ Store(uint32_t shared, int group)
        : buffer(shared + S::OUT + group * OUT_BYTES), columns(shared + S::COLUMNS + group * COLUMN_BYTES),
          landed(shared + S::LANDED + 8 * group), name(1 + group), leads(threadIdx.x % 128 == 0) {}

    // Issues the load of a tile's residual.
    __device__ __forceinline__ void begin(const Problem& problem, const Tile& tile, int row) {
        if (IS_QUANTIZED<T> || problem.epilogue.residual == nullptr) return;
        if (leads && row < problem.m) {
            wait_for_reads_of_stores<0>();
            const int first_outputs[2] = {tile.output(0), tile.output(1)};
            const int boxes = (first_outputs[0] >= 0) + (first_outputs[1] >= 0);
            barrier_arrive_expect(landed, boxes * OUT_BYTES / 2);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (first_outputs[half] >= 0)
                    copy_box(buffer + half * OUT_BYTES / 2, &problem.residual, first_outputs[half], row, landed);
        }
        __syncwarp();
    }

    template <bool GROUPED>
    __device__ __forceinline__ void end(const Problem& problem, const Tile& tile, int row, float (&sums)[64], const Scales<GROUPED>& scales) {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(columns + threadIdx.x % 128 * 8), "f"(scales.of_output),
                     "f"(bias_of(problem.epilogue, scales.stored_bias))
                     : "memory");
        if (leads) wait_for_reads_of_stores<0>();
        warpgroup_sync(name);
        if (row < problem.m) {
            scale(sums, scales.of_rows);
            if constexpr (IS_QUANTIZED<T>) {
                bool rows_left[2] = {true, true};
                if (problem.epilogue.activation > RELU) quantize_gelu(problem, tile, row, sums, rows_left);
                if (__any_sync(~0u, rows_left[0] || rows_left[1])) {
                    activate(problem, sums);
                    quantize(problem, tile, row, sums, rows_left);
                }
            } else {
                activate(problem, sums);
                round(problem, sums);
            }
        }
        fence_for_tensor_cores();  // and for TMA
        warpgroup_sync(name);
        if (leads && row < problem.m) {
            if constexpr (IS_QUANTIZED<T>) {
                store_box(&problem.y, tile.output(0) / 2, row, buffer);
            } else {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    if (tile.output(half) >= 0) store_box(&problem.y, tile.output(half), row, buffer + half * OUT_BYTES / 2);
            }
            commit_stores();
        }
        __syncwarp();
    }

    // Waits for outstanding TMA stores before the CTA exits.
    __device__ __forceinline__ void leave() const {
        if (leads) wait_for_reads_of_stores<0>();
        __syncwarp();
    }

   private:
    // Scales the sums and adds the bias. sums[4 e + 2 p + i]: output 8 e + 2 (lane % 4) + i, row p of the thread.
    __device__ __forceinline__ void scale(float (&sums)[64], const float (&row_scales)[2]) const {
        float4 of_two[16];  // scale and bias of two outputs
#pragma unroll
        for (int eight = 0; eight < 16; ++eight) of_two[eight] = load_16_bytes(columns + (eight * 8 + threadIdx.x % 4 * 2) * 8);
#pragma unroll
        for (int eight = 0; eight < 16; ++eight) {
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                float* v = sums + eight * 4 + p * 2;
                v[0] = fmaf(v[0] * row_scales[p], of_two[eight].x, of_two[eight].y);
                v[1] = fmaf(v[1] * row_scales[p], of_two[eight].z, of_two[eight].w);
            }
        }
    }

    __device__ __forceinline__ void activate(const Problem& problem, float (&sums)[64]) const {
        if (problem.epilogue.activation == NONE) return;
        if (problem.epilogue.activation == RELU) {
#pragma unroll
            for (float& v : sums) v = v > 0.0f || v != v ? v : 0.0f;  // NaN stays NaN, as in torch.relu
        } else {
#pragma unroll
            for (float& v : sums) v = gelu_for_16_bits(v, problem.epilogue.gelu);
        }
    }

    __device__ __forceinline__ void round(const Problem& problem, const float (&sums)[64]) {
        const bool adds = problem.epilogue.residual != nullptr;
        // this lane addresses a row of four 8 x 8 blocks: two along rows, for one block of outputs, then for the next
        const int lane = threadIdx.x % 32, block = lane / 8, in_eight = lane % 8;
        const uint32_t of_row = buffer + (threadIdx.x / 32 % 4 * 16 + block % 2 * 8 + in_eight) * 128;
        const auto address = [&](int sixteen) {
            return of_row + sixteen / 4 * (OUT_BYTES / 2) + (((sixteen * 2 + block / 2) % 8) ^ in_eight) * 16;
        };
        if (!adds) {
#pragma unroll
            for (int sixteen = 0; sixteen < 8; ++sixteen) {
                const float* v = sums + sixteen * 8;
                store_blocks(address(sixteen), packed<T>(v[0], v[1]), packed<T>(v[2], v[3]), packed<T>(v[4], v[5]), packed<T>(v[6], v[7]));
            }
            return;
        }
        barrier_wait(landed, phase);
        phase ^= 1;
#pragma unroll
        for (int sixteen = 0; sixteen < 8; ++sixteen) {
            const float* v = sums + sixteen * 8;
            const uint4 residual = load_blocks(address(sixteen));
            const float2 a = unpacked<T>(residual.x), b = unpacked<T>(residual.y), c = unpacked<T>(residual.z), d = unpacked<T>(residual.w);
            store_blocks(address(sixteen), packed<T>(v[0] + a.x, v[1] + a.y), packed<T>(v[2] + b.x, v[3] + b.y),
                         packed<T>(v[4] + c.x, v[5] + c.y), packed<T>(v[6] + d.x, v[7] + d.y));
        }
    }

    // Quantizes the thread's remaining rows.
    __device__ __forceinline__ void quantize(const Problem& problem, const Tile& tile, int row, float (&sums)[64], const bool (&rows_left)[2]) const {
        float sizes[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 64; ++i) sizes[i / 2 % 2] = fmaxf(sizes[i / 2 % 2], fabsf(sums[i]));
        const int lane = threadIdx.x % 32, in_group = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const float scale = scale_of(largest_size<4, 32>(sizes[p], sums, p * 2, 4)), reciprocal = __frcp_rn(scale);
            const int own_row = in_group + p * 8;
            if (!rows_left[p]) continue;
            store_scale(problem, tile, row + own_row, scale);
#pragma unroll
            for (int eight = 0; eight < 16; ++eight) {
                const float* two = sums + eight * 4 + p * 2;
                store_two(own_row, eight, packed_e4m3(two[0] * reciprocal, two[1] * reciprocal));
            }
        }
    }

    // GELU and quantization of two values at a time in half: its rounding and the error of the tanh are far below a step of e4m3.
    // Rows with values outside of half's range are left to the caller, independently of other rows. `sums` are not changed.
    __device__ __forceinline__ void quantize_gelu(const Problem& problem, const Tile& tile, int row, const float (&sums)[64], bool (&rows_left)[2]) const {
        const __half2 coefficients[3] = {__float2half2_rn(problem.epilogue.gelu[0]), __float2half2_rn(problem.epilogue.gelu[1]),
                                         __float2half2_rn(problem.epilogue.gelu[2])};
        __half2 v[32], before[2] = {}, sizes[2] = {};  // v[2 e + p]
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            v[i] = __floats2half2_rn(sums[i * 2], sums[i * 2 + 1]);
            before[i % 2] = __hmax2(before[i % 2], __habs2(v[i]));
            const uint32_t activated = gelu_of_two<__half>(reinterpret_cast<const uint32_t&>(v[i]), coefficients);
            v[i] = reinterpret_cast<const __half2&>(activated);
            sizes[i % 2] = __hmax2(sizes[i % 2], __habs2(v[i]));
        }
        float size[2];
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const bool fits = fmaxf(__low2float(before[p]), __high2float(before[p])) <= MOST_IN_HALF;
            size[p] = fits ? fmaxf(__low2float(sizes[p]), __high2float(sizes[p])) : __int_as_float(0x7F800000);
            size[p] = fmaxf(size[p], __shfl_xor_sync(~0u, size[p], 1));
            size[p] = fmaxf(size[p], __shfl_xor_sync(~0u, size[p], 2));
            rows_left[p] = size[p] < LEAST_IN_HALF || size[p] > MOST_IN_HALF;
        }
        const int lane = threadIdx.x % 32, in_group = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            if (rows_left[p]) continue;
            const int own_row = in_group + p * 8;
            const float scale = scale_of(size[p]);
            store_scale(problem, tile, row + own_row, scale);
            const __half2 reciprocal = __float2half2_rn(__frcp_rn(scale));
#pragma unroll
            for (int eight = 0; eight < 16; ++eight) store_two(own_row, eight, packed_e4m3(__hmul2(v[eight * 2 + p], reciprocal)));
        }
    }

    // Stores the scale of a row and tile.
    __device__ __forceinline__ void store_scale(const Problem& problem, const Tile& tile, int row, float scale) const {
        if (threadIdx.x % 4 == 0 && row < problem.m)
            problem.y_scales[static_cast<int64_t>(row) * (problem.n / OUTPUTS) + tile.output(0) / OUTPUTS] = scale;
    }

    // Stores two neighboring e4m3 values of this thread.
    __device__ __forceinline__ void store_two(int own_row, int eight, uint32_t both) const {
        const uint32_t of_row = buffer + own_row * 128 + threadIdx.x % 4 * 2;
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(of_row + ((eight / 2) ^ (own_row % 8)) * 16 + eight % 2 * 8),
                     "h"(static_cast<uint16_t>(both))
                     : "memory");
    }
};

}  // namespace
