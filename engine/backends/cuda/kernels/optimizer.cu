// Stochastic gradient descent, each product and sum rounded as on the CPU. Without weight decay the weight does not enter
// the gradient at all, so that an infinite weight makes no NaN.
#include "prelude.cuh"

__device__ inline float decayed(float weight, float gradient, float decay) {
    return decay != 0.0f ? __fadd_rn(__fmul_rn(weight, decay), gradient) : gradient;
}

struct Sgd {
    float rate, decay;
    __device__ float operator()(float weight, float gradient) const {
        return __fsub_rn(weight, __fmul_rn(decayed(weight, gradient, decay), rate));
    }
};

KERNEL sgd(float* weight, const float* gradient, const double* rate, int64 count, float decay) {
    map_flat(count, Sgd{(float)*rate, decay}, weight, weight, gradient);
}

struct Momentum {
    float rate, decay, momentum;
    int nesterov;
    __device__ void operator()(float& weight, float gradient, float& velocity) const {
        const float slope = decayed(weight, gradient, decay);
        velocity = __fadd_rn(__fmul_rn(velocity, momentum), slope);
        const float move = nesterov ? __fadd_rn(__fmul_rn(velocity, momentum), slope) : velocity;
        weight = __fsub_rn(weight, __fmul_rn(move, rate));
    }
};

KERNEL sgd_momentum(float* weight, const float* gradient, float* velocity, const double* rate, int64 count,
                    float decay, float momentum, int nesterov) {
    const Momentum update = {(float)*rate, decay, momentum, nesterov};
    const int64 fours = count / 4;
    for (int64 i = first_item(); i < fours; i += item_step()) {
        Pack<float, 4> w = load<4>(weight + 4 * i), v = load<4>(velocity + 4 * i);
        const Pack<float, 4> g = load<4>(gradient + 4 * i);
#pragma unroll
        for (int k = 0; k < 4; ++k) update(w.at[k], g.at[k], v.at[k]);
        store(weight + 4 * i, w);
        store(velocity + 4 * i, v);
    }
    for (int64 i = 4 * fours + first_item(); i < count; i += item_step()) update(weight[i], gradient[i], velocity[i]);
}
