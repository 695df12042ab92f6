// Max and average pooling of channels-last images, N channels at a time. Windows are gone through in row order, so that
// sums have the order of the CPU, and gradients are gathered: each pixel looks for the windows that it lies in.
#include "prelude.cuh"

struct Window {
    int channels, height, width, rows, columns;  // of the image; rows and columns of windows
    int kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width;
};
#define WINDOW_PARAMETERS                                                                                       \
    int channels, int height, int width, int rows, int columns, int kernel_height, int kernel_width,            \
        int stride_height, int stride_width, int padding_height, int padding_width
#define WINDOW                                                                                                  \
    {channels, height, width, rows, columns, kernel_height, kernel_width, stride_height, stride_width,          \
     padding_height, padding_width}

// Where an item lies in (images, height, width, channels / N).
struct Place {
    int64 image;
    int row, column, channel;
};
template <int N> __device__ inline Place place_of(int64 item, int height, int width, int channels) {
    const int64 packs = channels / N, pixel = item / packs, line = pixel / width;
    Place at;
    at.channel = N * (int)(item - pixel * packs);
    at.column = (int)(pixel - line * width);
    at.image = line / height;
    at.row = (int)(line - at.image * height);
    return at;
}

// Of the window positions along one axis: those that lie inside the image.
struct Range {
    int first, last;
};
__device__ inline Range inside(int start, int kernel, int size) {
    Range range;
    range.first = start < 0 ? -start : 0;
    range.last = size - start < kernel ? size - start : kernel;
    return range;
}
// Of the windows along one axis: those that hold pixel `at`.
__device__ inline Range holding(int at, int kernel, int stride, int padding, int windows) {
    const int end = at + padding;
    Range range;
    range.first = end < kernel ? 0 : (end - kernel) / stride + 1;
    range.last = end / stride < windows ? end / stride : windows - 1;
    return range;
}
// Pixels that a window counts along one axis: of the padded image, or of the image alone.
__device__ inline int counted(int start, int kernel, int size, int padding, int count_padding) {
    int first = start, last = start + kernel < size + padding ? start + kernel : size + padding;
    if (!count_padding) {
        first = first > 0 ? first : 0;
        last = last < size ? last : size;
    }
    return last - first;
}

// A value replaces the largest so far unless it is at most that, or that is a NaN: a NaN wins, and the first of equals.
template <int N, typename T, typename I>
__device__ inline void max_pool(const T* __restrict__ x, T* __restrict__ y, I* __restrict__ index, int64 items,
                                const Window& w) {
    for (int64 item = first_item(); item < items; item += item_step()) {
        const Place at = place_of<N>(item, w.rows, w.columns, w.channels);
        const int top = at.row * w.stride_height - w.padding_height;
        const int left = at.column * w.stride_width - w.padding_width;
        const Range vertical = inside(top, w.kernel_height, w.height);
        const Range horizontal = inside(left, w.kernel_width, w.width);
        float largest[N];
        int winner[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            largest[k] = negative_infinity();
            winner[k] = vertical.first * w.kernel_width + horizontal.first;
        }
        for (int r = vertical.first; r < vertical.last; ++r) {
            const T* line = x + ((at.image * w.height + top + r) * w.width + left) * w.channels + at.channel;
            for (int s = horizontal.first; s < horizontal.last; ++s) {
                const Pack<T, N> found = load<N>(line + (int64)s * w.channels);
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    const float value = to_float(found.at[k]);
                    if (!(value <= largest[k]) && largest[k] == largest[k]) {
                        largest[k] = value;
                        winner[k] = r * w.kernel_width + s;
                    }
                }
            }
        }
        Pack<T, N> values;
        Pack<I, N> places;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            values.at[k] = from_float<T>(largest[k]);
            places.at[k] = (I)winner[k];
        }
        store(y + N * item, values);
        store(index + N * item, places);
    }
}

// Windows from the last to the first: their positions that meet the pixel then come in row order. A pixel lies in few
// windows: unrolling the inner loop would cost registers and, by some compilers, spills, and win nothing.
template <int N, typename T, typename I>
__device__ inline void max_pool_backward(const T* __restrict__ dy, const I* __restrict__ index, T* __restrict__ dx,
                                         int64 items, const Window& w) {
    for (int64 item = first_item(); item < items; item += item_step()) {
        const Place at = place_of<N>(item, w.height, w.width, w.channels);
        const Range rows = holding(at.row, w.kernel_height, w.stride_height, w.padding_height, w.rows);
        const Range columns = holding(at.column, w.kernel_width, w.stride_width, w.padding_width, w.columns);
        float sum[N] = {};
        for (int p = rows.last; p >= rows.first; --p) {
            const int r = at.row + w.padding_height - p * w.stride_height;
            const int64 line = (at.image * w.rows + p) * w.columns;
#pragma unroll 1
            for (int q = columns.last; q >= columns.first; --q) {
                const int tap = r * w.kernel_width + at.column + w.padding_width - q * w.stride_width;
                const int64 from = (line + q) * w.channels + at.channel;
                const Pack<I, N> places = load<N>(index + from);
                const Pack<T, N> gradients = load<N>(dy + from);
#pragma unroll
                for (int k = 0; k < N; ++k)
                    if ((int)places.at[k] == tap) sum[k] = __fadd_rn(sum[k], to_float(gradients.at[k]));
            }
        }
        Pack<T, N> made;
#pragma unroll
        for (int k = 0; k < N; ++k) made.at[k] = from_float<T>(sum[k]);
        store(dx + N * item, made);
    }
}

template <int N, typename T>
__device__ inline void avg_pool(const T* __restrict__ x, T* __restrict__ y, int64 items, const Window& w,
                                int count_padding) {
    for (int64 item = first_item(); item < items; item += item_step()) {
        const Place at = place_of<N>(item, w.rows, w.columns, w.channels);
        const int top = at.row * w.stride_height - w.padding_height;
        const int left = at.column * w.stride_width - w.padding_width;
        const Range vertical = inside(top, w.kernel_height, w.height);
        const Range horizontal = inside(left, w.kernel_width, w.width);
        float sum[N] = {};
        for (int r = vertical.first; r < vertical.last; ++r) {
            const T* line = x + ((at.image * w.height + top + r) * w.width + left) * w.channels + at.channel;
            for (int s = horizontal.first; s < horizontal.last; ++s) {
                const Pack<T, N> found = load<N>(line + (int64)s * w.channels);
#pragma unroll
                for (int k = 0; k < N; ++k) sum[k] = __fadd_rn(sum[k], to_float(found.at[k]));
            }
        }
        const float divisor = (float)counted(top, w.kernel_height, w.height, w.padding_height, count_padding) *
                              (float)counted(left, w.kernel_width, w.width, w.padding_width, count_padding);
        Pack<T, N> made;
#pragma unroll
        for (int k = 0; k < N; ++k) made.at[k] = from_float<T>(__fdiv_rn(sum[k], divisor));
        store(y + N * item, made);
    }
}

template <int N, typename T>
__device__ inline void avg_pool_backward(const T* __restrict__ dy, T* __restrict__ dx, int64 items, const Window& w,
                                         int count_padding) {
    for (int64 item = first_item(); item < items; item += item_step()) {
        const Place at = place_of<N>(item, w.height, w.width, w.channels);
        const Range rows = holding(at.row, w.kernel_height, w.stride_height, w.padding_height, w.rows);
        const Range columns = holding(at.column, w.kernel_width, w.stride_width, w.padding_width, w.columns);
        float sum[N] = {};
        for (int p = rows.last; p >= rows.first; --p) {
            const int top = p * w.stride_height - w.padding_height;
            const float high = (float)counted(top, w.kernel_height, w.height, w.padding_height, count_padding);
            const int64 line = (at.image * w.rows + p) * w.columns;
#pragma unroll 1
            for (int q = columns.last; q >= columns.first; --q) {
                const int left = q * w.stride_width - w.padding_width;
                const float divisor =
                    high * (float)counted(left, w.kernel_width, w.width, w.padding_width, count_padding);
                const Pack<T, N> gradients = load<N>(dy + (line + q) * w.channels + at.channel);
#pragma unroll
                for (int k = 0; k < N; ++k)
                    sum[k] = __fadd_rn(sum[k], __fdiv_rn(to_float(gradients.at[k]), divisor));
            }
        }
        Pack<T, N> made;
#pragma unroll
        for (int k = 0; k < N; ++k) made.at[k] = from_float<T>(sum[k]);
        store(dx + N * item, made);
    }
}

typedef int int32;
#define MAX_POOL_INDEXED(suffix, N, T, I)                                                                        \
    KERNEL max_pool_##I##suffix(const T* x, T* y, I* index, int64 items, WINDOW_PARAMETERS) {                    \
        max_pool<N>(x, y, index, items, WINDOW);                                                                 \
    }                                                                                                            \
    KERNEL max_pool_backward_##I##suffix(const T* dy, const I* index, T* dx, int64 items, WINDOW_PARAMETERS) {   \
        max_pool_backward<N>(dy, index, dx, items, WINDOW);                                                      \
    }
#define MAX_POOL(suffix, N, T) MAX_POOL_INDEXED(suffix, N, T, uint8) MAX_POOL_INDEXED(suffix, N, T, int32)
FOR_EACH_PACK(MAX_POOL)

#define AVG_POOL(suffix, N, T)                                                                                   \
    KERNEL avg_pool##suffix(const T* x, T* y, int64 items, WINDOW_PARAMETERS, int count_padding) {               \
        avg_pool<N>(x, y, items, WINDOW, count_padding);                                                         \
    }                                                                                                            \
    KERNEL avg_pool_backward##suffix(const T* dy, T* dx, int64 items, WINDOW_PARAMETERS, int count_padding) {    \
        avg_pool_backward<N>(dy, dx, items, WINDOW, count_padding);                                              \
    }
FOR_EACH_PACK(AVG_POOL)

// dx[image, pixel, channel] = dy[image, channel] / pixels
template <int N, typename T>
__device__ inline void spread(const T* __restrict__ dy, T* __restrict__ dx, int64 count, int64 pixels,
                              int64 channels) {
    const int64 packs = channels / N, plane = pixels * packs;
    const float divisor = (float)pixels;
    for (int64 i = first_item(); i < count / N; i += item_step()) {
        Pack<T, N> values = load<N>(dy + N * (i / plane * packs + i % packs));
#pragma unroll
        for (int k = 0; k < N; ++k) values.at[k] = from_float<T>(__fdiv_rn(to_float(values.at[k]), divisor));
        store(dx + N * i, values);
    }
}
#define SPREAD(suffix, N, T)                                                                                     \
    KERNEL global_avg_pool_backward##suffix(const T* dy, T* dx, int64 count, int64 pixels, int64 channels) {     \
        spread<N>(dy, dx, count, pixels, channels);                                                              \
    }
FOR_EACH_PACK(SPREAD)
