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
typedef unsigned char uint8;

__device__ inline int64 first_item() { return (int64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline int64 item_step() { return (int64)gridDim.x * blockDim.x; }

__device__ inline float negative_infinity() { return -__int_as_float(0x7f800000); }

// max(x, 0), and NaN of NaN, which fmaxf would lose.
__device__ inline float positive_part(float x) { return x <= 0.0f ? 0.0f : x; }

// All arithmetic is in float; an element type needs these two.
__device__ inline float to_float(float x) { return x; }
template <typename T> __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }

// N neighbouring elements, moved by one instruction.
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};
template <int N, typename T> __device__ inline Pack<T, N> load(const T* source) {
    return *reinterpret_cast<const Pack<T, N>*>(source);
}
template <typename T, int N> __device__ inline void store(T* target, const Pack<T, N>& values) {
    *reinterpret_cast<Pack<T, N>*>(target) = values;
}

// y[i] = f(in[i] ...) for each of `count` elements, four at a time.
template <typename F, typename T, typename... Packs>
__device__ inline Pack<T, 4> four_of(F f, const Pack<T, 4>&, const Packs&... in) {
    Pack<T, 4> made;
#pragma unroll
    for (int k = 0; k < 4; ++k) made.at[k] = from_float<T>(f(to_float(in.at[k])...));
    return made;
}
template <typename F, typename T, typename... Sources>
__device__ inline void map_flat(int64 count, F f, T* y, const Sources*... in) {
    const int64 fours = count / 4;
    for (int64 i = first_item(); i < fours; i += item_step())
        store(y + 4 * i, four_of(f, Pack<T, 4>(), load<4>(in + 4 * i)...));
    for (int64 i = 4 * fours + first_item(); i < count; i += item_step()) y[i] = from_float<T>(f(to_float(in[i])...));
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
