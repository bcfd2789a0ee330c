// Elements of X in registers and their products with a chunk of the weight, for the kernels for few rows of X.
#pragma once

#include "small_m_problem.cuh"

namespace {

template <typename T>
__device__ __forceinline__ T rounded(float v) {
    if constexpr (__is_same(T, float)) {
        return v;
    } else if constexpr (__is_same(T, __half)) {
        return __float2half_rn(v);
    } else {
        return __float2bfloat16_rn(v);
    }
}

__device__ __forceinline__ float widened(float v) { return v; }
__device__ __forceinline__ float widened(__half v) { return __half2float(v); }
__device__ __forceinline__ float widened(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    if constexpr (__is_same(T, __half)) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    }
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ void multiply_add_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t to_tf32(float v) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
    return rounded;
}

// A float as the sum of two TF32 numbers, to within 2^-22 of it.
struct Parts {
    uint32_t large, small;

    __device__ __forceinline__ Parts() {}
    __device__ __forceinline__ explicit Parts(uint32_t bits) {
        const float v = __uint_as_float(bits);
        large = to_tf32(v);
        const float rest = v - __uint_as_float(large);
        small = rest == rest ? to_tf32(rest) : 0;  // infinity minus infinity: all of it is in the large part
    }
};

// One input's elements for the COLUMN_BLOCKS rows of X that a lane holds.
template <typename T, int COLUMN_BLOCKS>
struct Elements {
    static constexpr int BYTES = COLUMN_BLOCKS * sizeof(T), WORDS = (BYTES + 3) / 4;
    uint32_t word[WORDS];

    // From shared memory.
    __device__ __forceinline__ void load(uint32_t from, bool wanted) {
        static_assert(WORDS == 1);
        word[0] = 0;
        if (!wanted) return;
        if constexpr (BYTES == 2) {
            uint16_t v;
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
            word[0] = v;
        } else {
            word[0] = load_word(from);
        }
    }

    // Not through the read-only cache: another grid may have written X while this one was already launched.
    __device__ __forceinline__ void load(const void* from, bool wanted) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) word[i] = 0;
        if (!wanted) return;
        if constexpr (BYTES == 2) {
            word[0] = *static_cast<const volatile uint16_t*>(from);
        } else if constexpr (BYTES == 4) {
            asm volatile("ld.global.u32 %0, [%1];" : "=r"(word[0]) : "l"(from) : "memory");
        } else if constexpr (BYTES == 8) {
            asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(from) : "memory");
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4)
                asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(word[i]), "=r"(word[i + 1]), "=r"(word[i + 2]), "=r"(word[i + 3])
                             : "l"(static_cast<const uint32_t*>(from) + i)
                             : "memory");
        }
    }
};

// The 16-bit elements of two inputs for row block `block`, side by side.
template <typename Element>
__device__ __forceinline__ uint32_t paired(const Element& low, const Element& high, int block) {
    return __byte_perm(low.word[block / 2], high.word[block / 2], block % 2 ? 0x7632 : 0x5410);
}

// The gathered elements of X for the chunks of one slot: of each chunk, four inputs to a lane.
template <typename T, int COLUMN_BLOCKS, int UNIT>
struct Gathered {
    Elements<T, COLUMN_BLOCKS> x[UNIT][4];

    // list_of: chunk → the lane's four inputs; at: input → where the lane's elements of it are.
    template <typename ListOf, typename At>
    __device__ __forceinline__ void load(bool active, int chunks, const ListOf& list_of, const At& at) {
#pragma unroll
        for (int chunk = 0; chunk < UNIT; ++chunk) {
            if (chunk < chunks) {
                const uint2 four = list_of(chunk);
                const unsigned inputs[4] = {four.x & 0xFFFF, four.x >> 16, four.y & 0xFFFF, four.y >> 16};
#pragma unroll
                for (int i = 0; i < 4; ++i) x[chunk][i].load(at(inputs[i]), active && inputs[i] != NO_INPUT);
            }
        }
    }
};

// acc += the products of one chunk, whose fragments begin at `at` (the lane's own place); 16-bit elements.
template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_chunk(float (&acc)[FRAGMENTS][COLUMN_BLOCKS][4], const Elements<T, COLUMN_BLOCKS> (&x)[4], uint32_t at) {
    uint32_t b[COLUMN_BLOCKS][2];
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block) {
        b[block][0] = paired(x[0], x[1], block);
        b[block][1] = paired(x[2], x[3], block);
    }
#pragma unroll
    for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
        const uint4 a = load_shared_16(at + fragment * FRAGMENT_BYTES<T>);
#pragma unroll
        for (int block = 0; block < COLUMN_BLOCKS; ++block) multiply_add<T>(acc[fragment][block], a, b[block][0], b[block][1]);
    }
}

// The same for float, on tensor cores too: each operand is the sum of two TF32 numbers, and of the four products all but
// that of the two small parts are added up. A chunk has sums of its own, since the tensor cores cut off where additions
// outside round.
template <int FRAGMENTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_chunk(float (&acc)[FRAGMENTS][COLUMN_BLOCKS][4], const Elements<float, COLUMN_BLOCKS> (&x)[4], uint32_t at) {
    Parts b[COLUMN_BLOCKS][4];
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) b[block][i] = Parts(x[i].word[block]);
    }
#pragma unroll
    for (int fragment = 0; fragment < FRAGMENTS; ++fragment) {
        uint32_t large[2][4], small[2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 a = load_shared_16(at + fragment * FRAGMENT_BYTES<float> + half * 512);
            const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Parts parts(words[i]);
                large[half][i] = parts.large, small[half][i] = parts.small;
            }
        }
#pragma unroll
        for (int block = 0; block < COLUMN_BLOCKS; ++block) {
            float d[4] = {};
            const auto& v = b[block];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                multiply_add_tf32(d, small[half], v[2 * half].large, v[2 * half + 1].large);
                multiply_add_tf32(d, large[half], v[2 * half].small, v[2 * half + 1].small);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) multiply_add_tf32(d, large[half], v[2 * half].large, v[2 * half + 1].large);
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[fragment][block][i] += d[i];
        }
    }
}

}  // namespace
