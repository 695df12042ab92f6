// What all kernels share. Compiles with NVRTC and nvcc, and with g++ behind a header that stands in for CUDA.
//
// Rules for every kernel here:
// - It gives the same bits for every number of blocks, so loops stride over the grid and sums have one order.
// - Tensors begin at multiples of 16 bytes. Indices into tensors are 64-bit: a tensor may exceed 2^31 elements.
// - Pointers of an operation that may run in place carry no __restrict__.
// - Where the bits must be those of the CPU, sums and products are written with __fadd_rn, __fmul_rn and so on, which
//   are never contracted into a fused multiply-add.
#ifndef BATHYAL_PRELUDE
#define BATHYAL_PRELUDE

#ifndef KERNEL
// Threads of a KERNEL never meet; those of a COOPERATIVE_KERNEL do, at barriers and in shuffles.
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define COOPERATIVE_KERNEL extern "C" __global__ void __launch_bounds__(256)
#endif

typedef long long int64;
typedef unsigned long long uint64;
typedef unsigned int uint32;
typedef unsigned short uint16;
typedef unsigned char uint8;

__device__ inline int64 first_item() { return (int64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline int64 item_step() { return (int64)gridDim.x * blockDim.x; }

__device__ inline float negative_infinity() { return -__int_as_float(0x7f800000); }

// max(x, 0), and NaN of NaN, which fmaxf would lose.
__device__ inline float positive_part(float x) { return x <= 0.0f ? 0.0f : x; }

// A bfloat16 as it is stored: the upper half of a float32.
struct bf16 {
    uint16 bits;
};

// All arithmetic is in float; an element type needs these two.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __uint_as_float((uint32)x.bits << 16); }
template <typename T> __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
// The nearest bfloat16, of two the even one. A NaN keeps its upper half, with a bit set without which it might become an
// infinity.
template <> __device__ inline bf16 from_float<bf16>(float x) {
    const uint32 bits = __float_as_uint(x), upper = bits >> 16;
    bf16 made;
    made.bits = (uint16)(x != x ? upper | 0x40u : (bits + 0x7fffu + (upper & 1u)) >> 16);
    return made;
}

// An element as another type; one of the same type keeps its bits, which through float not every NaN does.
template <typename T, typename S> __device__ inline T converted(S x) { return from_float<T>(to_float(x)); }
template <> __device__ inline bf16 converted<bf16, bf16>(bf16 x) { return x; }

// Makes the entry points of a kernel: one for each element type, and one for each pair from which to which it moves
// elements. MAKE takes what their names end with, then the types.
#define FOR_EACH_TYPE(MAKE) MAKE(, float) MAKE(_bf16, bf16)
#define FOR_EACH_PAIR(MAKE)                                                                                      \
    MAKE(, float, float) MAKE(_bf16, bf16, bf16) MAKE(_to_bf16, float, bf16) MAKE(_from_bf16, bf16, float)
// The same for kernels that move N elements at once: N goes before the types.
#define FOR_EACH_PACK(MAKE)                                                                                      \
    MAKE(_4, 4, float) MAKE(_1, 1, float) MAKE(_bf16_8, 8, bf16) MAKE(_bf16_4, 4, bf16) MAKE(_bf16_1, 1, bf16)

// N neighbouring elements, moved by one instruction, or by two beyond 16 bytes: tensors are not aligned to more.
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T at[N];
};
template <int N, typename T> __device__ inline Pack<T, N> load(const T* source) {
    return *reinterpret_cast<const Pack<T, N>*>(source);
}
template <typename T, int N> __device__ inline void store(T* target, const Pack<T, N>& values) {
    *reinterpret_cast<Pack<T, N>*>(target) = values;
}

// y[i] = f(in[i] ...) for each of `count` elements, 16 bytes at a time.
template <typename F, typename T, int N, typename... Packs>
__device__ inline Pack<T, N> pack_of(F f, const Pack<T, N>&, const Packs&... in) {
    Pack<T, N> made;
#pragma unroll
    for (int k = 0; k < N; ++k) made.at[k] = from_float<T>(f(to_float(in.at[k])...));
    return made;
}
template <typename F, typename T, typename... Sources>
__device__ inline void map_flat(int64 count, F f, T* y, const Sources*... in) {
    constexpr int N = 16 / sizeof(T);
    const int64 packs = count / N;
    for (int64 i = first_item(); i < packs; i += item_step())
        store(y + N * i, pack_of(f, Pack<T, N>(), load<N>(in + N * i)...));
    for (int64 i = N * packs + first_item(); i < count; i += item_step()) y[i] = from_float<T>(f(to_float(in[i])...));
}

// Combines one value of each thread of a block, in one order; every thread gets the result. `shared` holds a value for
// each warp; the block is a multiple of 32 threads.
template <typename T, typename Combine> __device__ inline T block_reduce(T value, Combine combine, T* shared) {
    for (int distance = 16; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    T total = shared[0];
    for (int warp = 1; warp < (int)blockDim.x / 32; ++warp) total = combine(total, shared[warp]);
    __syncthreads();  // the next reduction may overwrite `shared`
    return total;
}
struct Sum {
    template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};
struct Largest {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

#endif
