// Kernels with the faults that a stand-in for a GPU must find.
#include "prelude.cuh"

// Reads what other threads write, without a barrier between.
COOPERATIVE_KERNEL racy_reverse(const float* x, float* y) {
    __shared__ float values[256];
    values[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}
// The same with the barrier.
COOPERATIVE_KERNEL sound_reverse(const float* x, float* y) {
    __shared__ float values[256];
    values[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}
// Blocks that write one element.
KERNEL racy_blocks(float* y) { y[0] = (float)blockIdx.x; }
// Some threads leave before a barrier.
COOPERATIVE_KERNEL left_barrier(float* y) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    y[threadIdx.x] = 1.0f;
}
// Threads wait at two barriers.
COOPERATIVE_KERNEL two_barriers(float* y) {
    if (threadIdx.x % 2)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1.0f;
}
// Half of a warp shuffles.
COOPERATIVE_KERNEL parted_shuffle(float* y) {
    float value = (float)threadIdx.x;
    if (threadIdx.x % 32 < 16) value = __shfl_xor_sync(0xffffffffu, value, 1);
    y[threadIdx.x] = value;
}
// A barrier in a kernel that declares none.
KERNEL undeclared_barrier(float* y) {
    __syncthreads();
    y[threadIdx.x] = 1.0f;
}
// Shared memory that was never written.
COOPERATIVE_KERNEL unwritten(float* y) {
    __shared__ float values[256];
    y[threadIdx.x] = values[threadIdx.x];
}
// Writes one element more than it was given.
KERNEL one_too_many(float* y, int64 count) {
    for (int64 i = first_item(); i <= count; i += item_step()) y[i] = 0.0f;
}
