// Local response normalization across the channels of channels-last images: y = x / d^beta, d = k + alpha / size · Σ x²
// over the channels from c − before to c + after.
#include "prelude.cuh"

struct Response {
    int channels, before, after;
    float factor, k, beta;  // factor = alpha / size

    // d of the element at `x`, whose channel is `channel`.
    template <typename T> __device__ float denominator(const T* x, int channel) const {
        const int first = channel < before ? -channel : -before;
        const int last = channels - 1 - channel < after ? channels - 1 - channel : after;
        float sum = 0.0f;
        for (int shift = first; shift <= last; ++shift) {
            const float found = to_float(x[shift]);
            sum += found * found;
        }
        return k + factor * sum;
    }
    // d^beta; AlexNet's exponent needs no general power, which would cost more than the memory traffic.
    __device__ float power(float d) const {
        if (beta == 0.75f) {
            const float root = sqrtf(d);
            return root * sqrtf(root);
        }
        return powf(d, beta);
    }
};

template <typename T>
__device__ inline void respond(const T* __restrict__ x, T* __restrict__ y, int64 count, const Response& response) {
    for (int64 i = first_item(); i < count; i += item_step()) {
        const float power = response.power(response.denominator(x + i, (int)(i % response.channels)));
        y[i] = from_float<T>(to_float(x[i]) / power);
    }
}

// dx_j = dy_j / d_j^beta − slope · x_j · Σ dy_c x_c / d_c^(beta + 1) over the channels c whose window holds j.
//
// A block takes 256 neighbouring elements of the flat tensor. Each term is worked out once and shared; those of the
// elements around the 256 are worked out again by the neighbouring blocks. The terms of another pixel are never added.
// slope = 2 · beta · factor. 256 threads, before + after ≤ 1024.
template <typename T>
__device__ inline void respond_backward(const T* __restrict__ x, const T* __restrict__ dy, T* __restrict__ dx,
                                        int64 count, const Response& response, float slope, float* terms) {
    const int channels = response.channels, before = response.before, after = response.after;
    for (int64 first = (int64)blockIdx.x * 256; first < count; first += (int64)gridDim.x * 256) {
        // A window that reaches `after` channels up holds j for the channels down to j − after.
        const int64 origin = first - after;
        const int held = 256 + before + after;
        float own = 0.0f;
        for (int t = threadIdx.x; t < held; t += 256) {
            // This thread's own element comes first, then its share of those around.
            const int place = t < 256 ? after + t : (t - 256 < after ? t - 256 : t);
            const int64 i = origin + place;
            if (i < 0 || i >= count) continue;
            const float d = response.denominator(x + i, (int)(i % channels)), power = response.power(d);
            const float gradient = to_float(dy[i]);
            terms[place] = gradient * to_float(x[i]) / (power * d);
            if (t < 256) own = gradient / power;
        }
        __syncthreads();
        const int64 i = first + threadIdx.x;
        if (i < count) {
            const int channel = (int)(i % channels);
            const int low = channel < after ? -channel : -after;
            const int high = channels - 1 - channel < before ? channels - 1 - channel : before;
            float sum = 0.0f;
            for (int shift = low; shift <= high; ++shift) sum += terms[after + (int)threadIdx.x + shift];
            dx[i] = from_float<T>(own - slope * to_float(x[i]) * sum);
        }
        __syncthreads();
    }
}

#define LRN(suffix, T)                                                                                           \
    KERNEL lrn##suffix(const T* __restrict__ x, T* __restrict__ y, int64 count, int channels, int before,        \
                       int after, float factor, float k, float beta) {                                           \
        respond(x, y, count, Response{channels, before, after, factor, k, beta});                                \
    }                                                                                                            \
    COOPERATIVE_KERNEL lrn_backward##suffix(const T* __restrict__ x, const T* __restrict__ dy,                   \
                                            T* __restrict__ dx, int64 count, int channels, int before,           \
                                            int after, float factor, float k, float beta, float slope) {         \
        __shared__ float terms[256 + 1024];                                                                      \
        respond_backward(x, dy, dx, count, Response{channels, before, after, factor, k, beta}, slope, terms);    \
    }
FOR_EACH_TYPE(LRN)
