// Local response normalization across the channels of channels-last images: y = x / d^beta, d = k + alpha / size · Σ x²
// over the channels from c − before to c + after.
#include "prelude.cuh"

struct Response {
    int channels, before, after;
    float factor, k, beta;  // factor = alpha / size

    // d of the element at `x`, whose channel is `channel`.
    __device__ float denominator(const float* x, int channel) const {
        const int first = channel < before ? -channel : -before;
        const int last = channels - 1 - channel < after ? channels - 1 - channel : after;
        float sum = 0.0f;
        for (int shift = first; shift <= last; ++shift) sum += x[shift] * x[shift];
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

KERNEL lrn(const float* __restrict__ x, float* __restrict__ y, int64 count, int channels, int before, int after,
           float factor, float k, float beta) {
    const Response response = {channels, before, after, factor, k, beta};
    for (int64 i = first_item(); i < count; i += item_step())
        y[i] = x[i] / response.power(response.denominator(x + i, (int)(i % channels)));
}

// dx_j = dy_j / d_j^beta − slope · x_j · Σ dy_c x_c / d_c^(beta + 1) over the channels c whose window holds j.
//
// A block takes 256 neighbouring elements of the flat tensor. Each term is worked out once and shared; those of the
// elements around the 256 are worked out again by the neighbouring blocks. The terms of another pixel are never added.
// slope = 2 · beta · factor. 256 threads, before + after ≤ 1024.
COOPERATIVE_KERNEL lrn_backward(const float* __restrict__ x, const float* __restrict__ dy, float* __restrict__ dx,
                                int64 count, int channels, int before, int after, float factor, float k, float beta,
                                float slope) {
    __shared__ float terms[256 + 1024];
    const Response response = {channels, before, after, factor, k, beta};
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
            terms[place] = dy[i] * x[i] / (power * d);
            if (t < 256) own = dy[i] / power;
        }
        __syncthreads();
        const int64 i = first + threadIdx.x;
        if (i < count) {
            const int channel = (int)(i % channels);
            const int low = channel < after ? -channel : -after;
            const int high = channels - 1 - channel < before ? channels - 1 - channel : before;
            float sum = 0.0f;
            for (int shift = low; shift <= high; ++shift) sum += terms[after + (int)threadIdx.x + shift];
            dx[i] = own - slope * x[i] * sum;
        }
        __syncthreads();
    }
}
