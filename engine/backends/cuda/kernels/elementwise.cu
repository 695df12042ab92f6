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

#define OF_ONE(name, T, F)                                \
    KERNEL name(const T* x, T* y, int64 count) { map_flat(count, F(), y, x); }
#define OF_TWO(name, T, F)                                \
    KERNEL name(const T* a, const T* b, T* y, int64 count) { map_flat(count, F(), y, a, b); }
// The gradients are of (y, dy). Named tanh_forward because tanh is a function of the C library.
#define ELEMENTWISE(suffix, T)                            \
    OF_ONE(relu##suffix, T, Relu)                         \
    OF_TWO(relu_backward##suffix, T, ReluBackward)        \
    OF_ONE(sigmoid##suffix, T, Sigmoid)                   \
    OF_TWO(sigmoid_backward##suffix, T, SigmoidBackward)  \
    OF_ONE(tanh_forward##suffix, T, Tanh)                 \
    OF_TWO(tanh_backward##suffix, T, TanhBackward)        \
    OF_TWO(add##suffix, T, Add)                           \
    OF_TWO(add_relu##suffix, T, AddRelu)
FOR_EACH_TYPE(ELEMENTWISE)

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
