// Softmax cross-entropy, its counts and its gradient, in double as on the CPU: the rows are few and the GPU has the units.
//
// A block takes a row. Only the largest logit is found in float, where it is exact; a NaN, which that leaves out, comes
// back with the sum of the exponentials.
#include "prelude.cuh"

struct Reduction {
    double sums[8];
    float largest[8];
    int counts[8];
};

__device__ inline float largest_of(const float* row, int64 classes, float* shared) {
    float largest = negative_infinity();
    for (int64 j = threadIdx.x; j < classes; j += blockDim.x) largest = fmaxf(largest, row[j]);
    return block_reduce(largest, Largest(), shared);
}

__device__ inline double sum_of_exponentials(const float* row, int64 classes, double largest, double* shared) {
    double sum = 0.0;
    for (int64 j = threadIdx.x; j < classes; j += blockDim.x) sum += exp((double)row[j] - largest);
    return block_reduce(sum, Sum(), shared);
}

// losses[row] = log Σ exp(l_j) − l_label; ranks[row] = number of other classes whose logit is not at most the label's.
COOPERATIVE_KERNEL softmax_cross_entropy_rows(const float* __restrict__ logits, const int64* __restrict__ labels,
                                              double* __restrict__ losses, int64* __restrict__ ranks, int64 rows,
                                              int64 classes) {
    __shared__ Reduction shared;
    for (int64 r = blockIdx.x; r < rows; r += gridDim.x) {
        const float* row = logits + r * classes;
        const int64 label = labels[r];
        const float own = row[label];
        int before = 0;
        for (int64 j = threadIdx.x; j < classes; j += blockDim.x) before += j != label && !(row[j] <= own);
        before = block_reduce(before, Sum(), shared.counts);
        const double largest = largest_of(row, classes, shared.largest);
        const double sum = sum_of_exponentials(row, classes, largest, shared.sums);
        if (threadIdx.x == 0) {
            losses[r] = log(sum) + largest - (double)own;
            ranks[r] = before;
        }
    }
}

// loss = mean of losses; correct = rows with rank 0, rows with a rank below `top`. One block.
COOPERATIVE_KERNEL softmax_cross_entropy_mean(const double* __restrict__ losses, const int64* __restrict__ ranks,
                                              float* __restrict__ loss, int64* __restrict__ correct, int64 rows,
                                              int64 top) {
    __shared__ double sums[8];
    __shared__ int64 counts[8];
    double sum = 0.0;
    int64 first = 0, among = 0;
    for (int64 r = threadIdx.x; r < rows; r += blockDim.x) {
        sum += losses[r];
        first += ranks[r] < 1;
        among += ranks[r] < top;
    }
    sum = block_reduce(sum, Sum(), sums);
    first = block_reduce(first, Sum(), counts);
    among = block_reduce(among, Sum(), counts);
    if (threadIdx.x == 0) {
        loss[0] = (float)(sum / (double)rows);
        correct[0] = first;
        correct[1] = among;
    }
}

// dlogits = (softmax − one-hot) · loss_scale / rows; may overwrite the logits: a thread writes what it alone still reads.
COOPERATIVE_KERNEL softmax_cross_entropy_backward(const float* logits, const int64* labels, const double* loss_scale,
                                                  float* dlogits, int64 rows, int64 classes) {
    __shared__ Reduction shared;
    const double scale = *loss_scale / (double)rows;
    for (int64 r = blockIdx.x; r < rows; r += gridDim.x) {
        const float* row = logits + r * classes;
        const int64 label = labels[r];
        const double largest = largest_of(row, classes, shared.largest);
        const double sum = sum_of_exponentials(row, classes, largest, shared.sums);
        for (int64 j = threadIdx.x; j < classes; j += blockDim.x) {
            const double share = exp((double)row[j] - largest) / sum;
            dlogits[r * classes + j] = (float)((share - (j == label ? 1.0 : 0.0)) * scale);
        }
    }
}
