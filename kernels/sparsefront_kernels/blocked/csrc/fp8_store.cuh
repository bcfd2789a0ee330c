// Y of a work tile of the fp8 kernel: activation(sums · scales + bias) + residual, from registers through shared memory, from where
// the copy engine takes it; or e4m3 with a scale for each row and 128 outputs.
#pragma once

#include "../../cuda/rounded_epilogue.cuh"
#include "fp8_work.cuh"

namespace {

struct E4M3 {};  // as the type of Y

template <typename T>
constexpr bool IS_QUANTIZED = std::is_same_v<T, E4M3>;

// Two numbers as e4m3, the first in the lower byte: nearest even, saturating; NaN stays NaN.
__device__ __forceinline__ uint32_t packed_e4m3(float first, float second) {
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
    return both;
}

__device__ __forceinline__ float finite_size(float v) {
    const float size = fabsf(v);
    return size < __int_as_float(0x7F800000) ? size : 0.0f;  // neither Inf nor NaN
}

// The scale by which numbers up to a size become e4m3, and the division by it, rounded as IEEE's: two steps from the reciprocal
// (Markstein). An infinite number gives NaN: e4m3 has no other way to say so.
struct Quantizer {
    float scale, divisor, reciprocal, lift;

    __device__ __forceinline__ explicit Quantizer(float size) {
        scale = size > 0.0f ? __fdiv_rn(size, 448.0f) : 1.0f;
        if (scale == 0.0f) scale = 1.0f;  // the quotient is too small for float32
        lift = scale < 0x1p-60f ? 0x1p64f : 1.0f;  // the reciprocal of a tiny scale would be infinite
        divisor = scale * lift;
        reciprocal = __frcp_rn(divisor);
    }

    __device__ __forceinline__ float operator()(float v) const {
        const float lifted = v * lift, quotient = lifted * reciprocal;
        return fmaf(fmaf(-quotient, divisor, lifted), reciprocal, quotient);
    }
};

template <typename T>
struct Store {
    uint32_t buffer, columns, landed, name;
    bool leads;  // this thread starts the warpgroup's copies
    uint32_t phase = 0;
    float scale = 0.0f, bias = 0.0f;  // of the output whose number in the CTA tile is this thread's in the warpgroup

    __device__ __forceinline__ Store(uint32_t shared, int group)
        : buffer(shared + OUT_AT + group * OUT_BYTES), columns(shared + COLUMNS_AT + group * COLUMN_BYTES),
          landed(shared + LANDED_AT + 8 * group), name(1 + group), leads(threadIdx.x % 128 == 0) {}

    // Begins to load what the end of a tile needs.
    __device__ __forceinline__ void begin(const Problem& problem, const Tile& tile, int row) {
        const int own = threadIdx.x % 128, first = tile.output(own / HALF), output = first + own % HALF;
        scale = first < 0 ? 0.0f : load_float_early(problem.w_scales + output);
        bias = first < 0 ? 0.0f : bias_of(problem.epilogue, load_bias(problem.epilogue, output));
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

    __device__ __forceinline__ void end(const Problem& problem, const Tile& tile, int row, float (&sums)[64],
                                        const float (&row_scales)[2]) {
        const int own = threadIdx.x % 128;
        const float both[2] = {scale, bias};
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(columns + own * 8), "f"(both[0]), "f"(both[1]) : "memory");
        if (leads) wait_for_reads_of_stores<0>();
        warpgroup_sync(name);
        if (row < problem.m) {
            if constexpr (IS_QUANTIZED<T>) {
                quantize(problem, tile, row, sums, row_scales);
            } else {
                round(problem, sums, row_scales);
            }
        }
        fence_for_tensor_cores();  // and for the copy engine
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

    // The end of the grid waits for what the copy engine still has to write.
    __device__ __forceinline__ void finish() const {
        if (leads) wait_for_reads_of_stores<0>();
        __syncwarp();
    }

   private:
    // 16 outputs of a thread's two rows: two of the first eight by row, then two of the second.
    __device__ __forceinline__ void activated_sums(const Problem& problem, int sixteen, const float* sums, const float (&row_scales)[2],
                                                   float (&v)[8]) const {
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
            const float4 of_two = load_16_bytes(columns + (sixteen * 16 + eight * 8 + threadIdx.x % 4 * 2) * 8);
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                v[eight * 4 + p * 2] = fmaf(sums[eight * 4 + p * 2] * row_scales[p], of_two.x, of_two.y);
                v[eight * 4 + p * 2 + 1] = fmaf(sums[eight * 4 + p * 2 + 1] * row_scales[p], of_two.z, of_two.w);
            }
        }
        if (problem.epilogue.activation != NONE) activate_for_16_bits(v, problem.epilogue);
    }

    __device__ __forceinline__ void round(const Problem& problem, const float (&sums)[64], const float (&row_scales)[2]) {
        const bool adds = problem.epilogue.residual != nullptr;
        if (adds) {
            barrier_wait(landed, phase);
            phase ^= 1;
        }
        // of four blocks of 8 x 8 this lane gives the address of a row: two of rows, of one eight of outputs, then of the next
        const int lane = threadIdx.x % 32, block = lane / 8, in_eight = lane % 8;
        const uint32_t of_row = buffer + (threadIdx.x / 32 % 4 * 16 + block % 2 * 8 + in_eight) * 128;
#pragma unroll
        for (int sixteen = 0; sixteen < OUTPUTS / 16; ++sixteen) {
            float v[8];
            activated_sums(problem, sixteen, sums + sixteen * 8, row_scales, v);
            const uint32_t address = of_row + sixteen / 4 * (OUT_BYTES / 2) + (((sixteen * 2 + block / 2) % 8) ^ in_eight) * 16;
            if (adds) {
                const uint4 residual = load_blocks(address);
                const uint32_t words[4] = {residual.x, residual.y, residual.z, residual.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float2 both = unpacked<T>(words[i]);
                    v[i * 2] += both.x, v[i * 2 + 1] += both.y;
                }
            }
            store_blocks(address, packed<T>(v[0], v[1]), packed<T>(v[2], v[3]), packed<T>(v[4], v[5]), packed<T>(v[6], v[7]));
        }
    }

    __device__ __forceinline__ void quantize(const Problem& problem, const Tile& tile, int row, float (&sums)[64],
                                             const float (&row_scales)[2]) {
        float size[2] = {0.0f, 0.0f};
#pragma unroll
        for (int sixteen = 0; sixteen < OUTPUTS / 16; ++sixteen) {
            float v[8];
            activated_sums(problem, sixteen, sums + sixteen * 8, row_scales, v);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                sums[sixteen * 8 + i] = v[i];
                size[i / 2 % 2] = fmaxf(size[i / 2 % 2], finite_size(v[i]));
            }
        }
        const int lane = threadIdx.x % 32, in_group = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            size[p] = fmaxf(size[p], __shfl_xor_sync(~0u, size[p], 1));
            size[p] = fmaxf(size[p], __shfl_xor_sync(~0u, size[p], 2));
            const Quantizer quantized(size[p]);
            const int own_row = in_group + p * 8;
            if (lane % 4 == 0 && row + own_row < problem.m)
                problem.y_scales[static_cast<int64_t>(row + own_row) * (problem.n / OUTPUTS) + tile.output(0) / OUTPUTS] = quantized.scale;
            const uint32_t of_row = buffer + own_row * 128 + lane % 4 * 2;
#pragma unroll
            for (int eight = 0; eight < OUTPUTS / 8; ++eight) {
                const uint32_t both = packed_e4m3(quantized(sums[eight * 4 + p * 2]), quantized(sums[eight * 4 + p * 2 + 1]));
                asm volatile("st.shared.b16 [%0], %1;" ::"r"(of_row + ((eight / 2) ^ (own_row % 8)) * 16 + eight % 2 * 8),
                             "h"(static_cast<uint16_t>(both))
                             : "memory");
            }
        }
    }
};

}  // namespace
