// Batch normalization with the running statistics, and their update.
#include "prelude.cuh"

// (1 − share) · running + share · batch, every step in double.
__device__ inline float moved(float running, double batch, double keep, double share) {
    return (float)__dadd_rn(__dmul_rn((double)running, keep), __dmul_rn(batch, share));
}

// `inverse` is 1 / √(variance + eps), as cuDNN leaves it. Rounding may carry the variance that it gives back below zero.
KERNEL batch_norm_update(const float* mean, const float* inverse, float* running_mean, float* running_var,
                         int64 channels, double eps, double keep, double mean_share, double var_share) {
    for (int64 c = first_item(); c < channels; c += item_step()) {
        const double deviation = (double)inverse[c];
        const double var = 1.0 / (deviation * deviation) - eps;
        running_mean[c] = moved(running_mean[c], (double)mean[c], keep, mean_share);
        running_var[c] = moved(running_var[c], var < 0.0 ? 0.0 : var, keep, var_share);
    }
}

// scale = weight / √(variance + eps), worked out in double once per channel.
KERNEL batch_norm_scale(const float* weight, const float* var, float* scale, int64 channels, double eps) {
    for (int64 c = first_item(); c < channels; c += item_step())
        scale[c] = (float)((double)weight[c] * (1.0 / sqrt((double)var[c] + eps)));
}

// y = (x − mean) · scale + bias, of channels-last images, N channels at a time.
template <int N, bool RELU, typename T>
__device__ inline void normalize(const T* x, const float* mean, const float* scale, const float* bias, T* y,
                                 int64 count, int64 channels) {
    const int64 packs = count / N, width = channels / N;
    for (int64 i = first_item(); i < packs; i += item_step()) {
        const int64 c = N * (i % width);
        Pack<T, N> values = load<N>(x + N * i);
        const Pack<float, N> centre = load<N>(mean + c), slope = load<N>(scale + c), shift = load<N>(bias + c);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float centred = __fsub_rn(to_float(values.at[k]), centre.at[k]);
            const float made = __fadd_rn(__fmul_rn(centred, slope.at[k]), shift.at[k]);
            values.at[k] = from_float<T>(RELU ? positive_part(made) : made);
        }
        store(y + N * i, values);
    }
}

#define NORMALIZE(suffix, N, T)                                                                                  \
    KERNEL batch_norm##suffix(const T* x, const float* mean, const float* scale, const float* bias, T* y,        \
                              int64 count, int64 channels) {                                                     \
        normalize<N, false>(x, mean, scale, bias, y, count, channels);                                           \
    }                                                                                                            \
    KERNEL batch_norm_relu##suffix(const T* x, const float* mean, const float* scale, const float* bias, T* y,   \
                                   int64 count, int64 channels) {                                                \
        normalize<N, true>(x, mean, scale, bias, y, count, channels);                                            \
    }
FOR_EACH_PACK(NORMALIZE)
