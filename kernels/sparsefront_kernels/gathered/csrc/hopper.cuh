// Hopper's instructions (sm_90a) as functions: mbarriers, copies into shared memory, warpgroup products.
// Names and semantics: PTX ISA, sections "mbarrier", "cp.async", "cp.async.bulk" and "wgmma.mma_async".
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives and announces `bytes` that bulk copies will bring.
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n"
        "}\n" ::"r"(barrier),
        "r"(phase)
        : "memory");
}

// 16 bytes, past L1; where `bytes` is 0 nothing is read and zeros are written.
__device__ __forceinline__ void copy_16_bytes(uint32_t target, const void* source, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes)
                 : "memory");
}

// base + row * stride in one instruction.
__device__ __forceinline__ const void* row_address(const void* base, int row, uint32_t stride) {
    uint64_t address;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(row), "r"(stride), "l"(reinterpret_cast<uint64_t>(base)));
    return reinterpret_cast<const void*>(address);
}

__device__ __forceinline__ void wait_for_own_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The barrier counts an arrival of this thread once all its copies so far have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// One contiguous run of a multiple of 16 bytes, by the copy engine.
__device__ __forceinline__ void copy_bulk(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(barrier)
                 : "memory");
}

// What threads wrote to shared memory becomes visible to the tensor cores.
__device__ __forceinline__ void fence_for_tensor_cores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Hints: bring this into L2. Nothing is read, so memory that is written later stays right.
__device__ __forceinline__ void prefetch_line(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

__device__ __forceinline__ void prefetch_bulk(const void* address, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
}

// Waits until the kernels before this one in the stream have ended and what they wrote is visible; returns at once where
// this one was not launched ahead of their end.
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel of the stream may start as soon as every block has said so or ended, if it was launched to.
__device__ __forceinline__ void pdl_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ uint32_t rank_in_cluster() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster that have not ended; what they wrote before is visible afterwards.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// As cluster_sync, but says nothing about what they wrote: for where barriers count that, or nothing is read afterwards.
__device__ __forceinline__ void cluster_sync_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Where an address of our shared memory lies in another block of the cluster.
__device__ __forceinline__ uint32_t address_in_cluster(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// 16 bytes into the shared memory of any block of the cluster, where a barrier counts them; both by their addresses in the
// cluster.
__device__ __forceinline__ void store_in_cluster(uint32_t target, const float* v, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     target),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
                 : "memory");
}

// 16 bytes from the shared memory of another block of the cluster, at the address that ours has here.
__device__ __forceinline__ float4 load_from_cluster(uint32_t address, uint32_t rank) {
    const uint32_t there = address_in_cluster(address, rank);
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(there)
                 : "memory");
    return v;
}

__device__ __forceinline__ float4 load_16_bytes(uint32_t address) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The same value for all threads of a warp, and known to the compiler as such, which then keeps what is made of it in
// uniform registers, where the tensor cores' instructions read their descriptors from.
__device__ __forceinline__ uint32_t warp_uniform(uint32_t v) { return __shfl_sync(~0u, v, 0); }

// Stops the compiler from computing a value anew wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t v) {
    uint32_t same;
    asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(v));
    return same;
}

__device__ __forceinline__ const char* kept(const char* v) {
    const char* same;
    asm volatile("mov.b64 %0, %1;" : "=l"(same) : "l"(v));
    return same;
}

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ void store_word(uint32_t address, uint32_t v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

// An operand of 16 k whose rows run along M (or N): 128-byte rows of 64 elements, 8 k to an atom of 1024 bytes, swizzled
// by 128 bytes. `block_stride` bytes lie between neighbouring blocks of 64 elements. This is the lower half of its
// descriptor; to step by bytes, add a sixteenth of them.
__device__ __forceinline__ uint32_t operand_place(uint32_t address, uint32_t block_stride) {
    return (block_stride >> 4) << 16 | (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ uint64_t operand_descriptor(uint32_t place) {
    constexpr uint64_t swizzle_128 = 1ull << 62, atom_stride = 1024 >> 4;
    return swizzle_128 | atom_stride << 32 | place;
}

#define OUT_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT_16(i) OUT_4(i), OUT_4(i + 4), OUT_4(i + 8), OUT_4(i + 12)
#define OUT_32(i) OUT_16(i), OUT_16(i + 16)
#define OUT_64(i) OUT_32(i), OUT_32(i + 32)
#define NAMES_32                                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                           \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                                       \
    NAMES_32                                                                                                           \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                                \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_96                                                                                                       \
    NAMES_64                                                                                                           \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"                                                \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_128                                                                                                      \
    NAMES_96                                                                                                           \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"                                     \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define COMMA ,
#define WGMMA(COLUMNS, TYPE, NAMES, OUTS, LEFT, RIGHT, ADD)                                                            \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES "}, %" #LEFT         \
                 ", %" #RIGHT ", add, 1, 1, 1, 1;\n}\n"                                                                \
                 : OUTS                                                                                                \
                 : "l"(left), "l"(right), "r"(add))

// d[64, COLUMNS] (+)= left[16, 64]^T · right[16, COLUMNS], both operands in shared memory with M (N) contiguous.
template <typename T, int COLUMNS>
__device__ __forceinline__ void wgmma(float (&d)[COLUMNS / 2], uint64_t left, uint64_t right, int add) {
    constexpr bool half = sizeof(T) == 2 && !__is_same(T, __nv_bfloat16);
    if constexpr (COLUMNS == 64 && half) {
        WGMMA(64, "f16", NAMES_32, OUT_32(0), 32, 33, 34);
    } else if constexpr (COLUMNS == 64) {
        WGMMA(64, "bf16", NAMES_32, OUT_32(0), 32, 33, 34);
    } else if constexpr (COLUMNS == 128 && half) {
        WGMMA(128, "f16", NAMES_64, OUT_64(0), 64, 65, 66);
    } else if constexpr (COLUMNS == 128) {
        WGMMA(128, "bf16", NAMES_64, OUT_64(0), 64, 65, 66);
    } else if constexpr (COLUMNS == 192 && half) {
        WGMMA(192, "f16", NAMES_96, OUT_64(0) COMMA OUT_32(64), 96, 97, 98);
    } else if constexpr (COLUMNS == 192) {
        WGMMA(192, "bf16", NAMES_96, OUT_64(0) COMMA OUT_32(64), 96, 97, 98);
    } else if constexpr (COLUMNS == 256 && half) {
        WGMMA(256, "f16", NAMES_128, OUT_64(0) COMMA OUT_64(64), 128, 129, 130);
    } else {
        static_assert(COLUMNS == 256);
        WGMMA(256, "bf16", NAMES_128, OUT_64(0) COMMA OUT_64(64), 128, 129, 130);
    }
}
