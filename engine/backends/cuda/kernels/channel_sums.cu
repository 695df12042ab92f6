// Sums over the pixels of channels-last images, in double as on the CPU: a float sum over a million pixels loses digits.
//
// Rows are cut into groups (the images whose sums are wanted apart) and each group into splits, so that few groups keep
// the whole GPU busy. A block takes 32 channels of one split, in 8 lines of rows; then the splits are added in order.
// The cut is an argument: the sums do not depend on the number of blocks.
#include "prelude.cuh"

// sums[group, split, channel]. 256 threads.
template <typename T>
__device__ inline void sum_splits(const T* __restrict__ x, double* __restrict__ sums, int64 groups, int64 rows,
                                  int64 channels, int64 splits, double (*shared)[32]) {
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
            for (int64 row = first + line; row < last; row += 8) sum += (double)to_float(column[row * channels]);
        }
        shared[line][lane] = sum;
        __syncthreads();
        if (line == 0 && channel < channels) {
            for (int other = 1; other < 8; ++other) sum += shared[other][lane];
            sums[part * channels + channel] = sum;
        }
        __syncthreads();
    }
}
COOPERATIVE_KERNEL channel_sums(const float* x, double* sums, int64 groups, int64 rows, int64 channels,
                                int64 splits) {
    __shared__ double shared[8][32];
    sum_splits(x, sums, groups, rows, channels, splits, shared);
}

// y[group, channel] = Σ sums[group, split, channel] / divisor
KERNEL channel_totals(const double* __restrict__ sums, float* __restrict__ y, int64 groups, int64 channels,
                      int64 splits, double divisor) {
    for (int64 i = first_item(); i < groups * channels; i += item_step()) {
        const int64 group = i / channels, channel = i - group * channels;
        double total = 0.0;
        for (int64 split = 0; split < splits; ++split) total += sums[(group * splits + split) * channels + channel];
        y[i] = (float)(total / divisor);
    }
}
