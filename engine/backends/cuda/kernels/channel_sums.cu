// Sums over the pixels of channels-last images, in double as on the CPU: a float sum over a million pixels loses digits.
//
// Rows are cut into groups (the images whose sums are wanted apart) and each group into splits, so that few groups keep
// the whole GPU busy; where there are several splits, their sums are rows that are summed again. A block takes 32
// channels of one split, in 8 lines of rows. The cut is an argument: the sums do not depend on the number of blocks.
#include "prelude.cuh"

template <typename T> __device__ inline double widened(T x) { return (double)to_float(x); }
template <> __device__ inline double widened<double>(double x) { return x; }
template <typename T> __device__ inline T narrowed(double x) { return from_float<T>((float)x); }
template <> __device__ inline double narrowed<double>(double x) { return x; }

// y[group, split, channel] = Σ x[group, rows of the split, channel] / divisor. 256 threads.
template <typename T, typename Y>
__device__ inline void sum_splits(const T* __restrict__ x, Y* __restrict__ y, int64 groups, int64 rows, int64 channels,
                                  int64 splits, double divisor, double (*shared)[32]) {
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
    const int64 tiles = (channels + 31) / 32, length = (rows + splits - 1) / splits;
    for (int64 item = blockIdx.x; item < groups * splits * tiles; item += gridDim.x) {
        const int64 part = item / tiles, group = part / splits, split = part - group * splits;
        const int64 channel = 32 * (item - part * tiles) + lane;
        const int64 first = split * length, last = first + length < rows ? first + length : rows;
        double sum = 0.0;
        if (channel < channels) {
            const T* column = x + group * rows * channels + channel;
#pragma unroll 4
            for (int64 row = first + line; row < last; row += 8) sum += widened(column[row * channels]);
        }
        shared[line][lane] = sum;
        __syncthreads();
        if (line == 0 && channel < channels) {
            for (int other = 1; other < 8; ++other) sum += shared[other][lane];
            y[part * channels + channel] = narrowed<Y>(sum / divisor);
        }
        __syncthreads();
    }
}

#define SUMS(name, T, Y)                                                                                            \
    COOPERATIVE_KERNEL name(const T* __restrict__ x, Y* __restrict__ y, int64 groups, int64 rows, int64 channels,   \
                            int64 splits, double divisor) {                                                         \
        __shared__ double shared[8][32];                                                                            \
        sum_splits(x, y, groups, rows, channels, splits, divisor, shared);                                          \
    }
SUMS(channel_means, float, float)
SUMS(channel_means_bf16, bf16, bf16)
SUMS(channel_means_from_bf16, bf16, float)
SUMS(channel_sums, float, double)
SUMS(channel_sums_bf16, bf16, double)
SUMS(channel_totals, double, float)
SUMS(channel_totals_bf16, double, bf16)
