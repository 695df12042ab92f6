// ReLU, sigmoid, tanh and their gradients from the output; sums of two tensors; a bias added to rows.
#include "prelude.cuh"

struct Relu {
    __device__ float operator()(float x) const { return positive_part(x); }
};
struct ReluBackward {
    __device__ float operator()(float y, float dy) const { return y <= 0.0f ? 0.0f : dy; }
};
struct Sigmoid {
    // The exponential never overflows, and small values keep their digits.
    __device__ float operator()(float x) const {
        const float decay = expf(-fabsf(x));
        return (x >= 0.0f ? 1.0f : decay) / (1.0f + decay);
    }
};
struct SigmoidBackward {
    __device__ float operator()(float y, float dy) const {
        return __fmul_rn(__fmul_rn(__fsub_rn(1.0f, y), y), dy);
    }
};
struct Tanh {
    __device__ float operator()(float x) const { return tanhf(x); }
};
struct TanhBackward {
    __device__ float operator()(float y, float dy) const {
        return __fmul_rn(__fsub_rn(1.0f, __fmul_rn(y, y)), dy);
    }
};
struct Add {
    __device__ float operator()(float a, float b) const { return __fadd_rn(a, b); }
};
struct AddRelu {
    __device__ float operator()(float a, float b) const { return positive_part(__fadd_rn(a, b)); }
};

KERNEL relu(const float* x, float* y, int64 count) { map_flat(count, Relu(), y, x); }
KERNEL relu_backward(const float* y, const float* dy, float* dx, int64 count) {
    map_flat(count, ReluBackward(), dx, y, dy);
}
KERNEL sigmoid(const float* x, float* y, int64 count) { map_flat(count, Sigmoid(), y, x); }
KERNEL sigmoid_backward(const float* y, const float* dy, float* dx, int64 count) {
    map_flat(count, SigmoidBackward(), dx, y, dy);
}
// Named so because tanh is a function of the C library.
KERNEL tanh_forward(const float* x, float* y, int64 count) { map_flat(count, Tanh(), y, x); }
KERNEL tanh_backward(const float* y, const float* dy, float* dx, int64 count) {
    map_flat(count, TanhBackward(), dx, y, dy);
}
KERNEL add(const float* a, const float* b, float* y, int64 count) { map_flat(count, Add(), y, a, b); }
KERNEL add_relu(const float* a, const float* b, float* y, int64 count) { map_flat(count, AddRelu(), y, a, b); }

// y[row, feature] += bias[feature], N features at a time.
template <int N, typename T> __device__ inline void add_bias(T* y, const T* bias, int64 count, int64 features) {
    const int64 packs = count / N, width = features / N;
    for (int64 i = first_item(); i < packs; i += item_step()) {
        Pack<T, N> values = load<N>(y + N * i);
        const Pack<T, N> added = load<N>(bias + N * (i % width));
#pragma unroll
        for (int k = 0; k < N; ++k) values.at[k] = from_float<T>(__fadd_rn(to_float(values.at[k]), to_float(added.at[k])));
        store(y + N * i, values);
    }
}
KERNEL bias_add_4(float* y, const float* bias, int64 count, int64 features) { add_bias<4>(y, bias, count, features); }
KERNEL bias_add_1(float* y, const float* bias, int64 count, int64 features) { add_bias<1>(y, bias, count, features); }
