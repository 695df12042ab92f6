// Copies: flat, of rows within wider rows, and of the transpose of each image. Elements are moved, not computed with, or
// become the nearest ones of another type.
#include "prelude.cuh"

// In place only between tensors of one type.
template <typename S, typename T> __device__ inline void copy(const S* x, T* y, int64 count) {
    if ((const void*)x == (const void*)y) return;
    constexpr int N = 16 / (sizeof(S) < sizeof(T) ? sizeof(S) : sizeof(T));
    const int64 packs = count / N;
    for (int64 i = first_item(); i < packs; i += item_step()) {
        const Pack<S, N> values = load<N>(x + N * i);
        Pack<T, N> made;
#pragma unroll
        for (int k = 0; k < N; ++k) made.at[k] = converted<T>(values.at[k]);
        store(y + N * i, made);
    }
    for (int64 i = N * packs + first_item(); i < count; i += item_step()) y[i] = converted<T>(x[i]);
}
#define COPY_FLAT(suffix, S, T) \
    KERNEL copy_flat##suffix(const S* x, T* y, int64 count) { copy(x, y, count); }
FOR_EACH_PAIR(COPY_FLAT)

// target[row, column] = source[row, column] for `width` columns; consecutive rows are `from` and `to` elements apart.
template <int N, typename T>
__device__ inline void copy_columns(const T* __restrict__ source, T* __restrict__ target, int64 rows, int64 width,
                                    int64 from, int64 to) {
    const int64 packs = width / N;
    for (int64 i = first_item(); i < rows * packs; i += item_step()) {
        const int64 row = i / packs, column = N * (i - row * packs);
        store(target + row * to + column, load<N>(source + row * from + column));
    }
}
#define COPY_COLUMNS(suffix, N, T)                                                                               \
    KERNEL copy_columns##suffix(const T* source, T* target, int64 rows, int64 width, int64 from, int64 to) {     \
        copy_columns<N>(source, target, rows, width, from, to);                                                  \
    }
FOR_EACH_PACK(COPY_COLUMNS)

// y[image, column, row] = x[image, row, column], through tiles of 32 × 32, so that both sides are read and written along
// their rows. 256 threads. A row of the tile has one element more than it holds: a column then spreads over all banks,
// of elements of four bytes as of two.
template <typename S, typename T>
__device__ inline void transpose_tiles(const S* __restrict__ x, T* __restrict__ y, int64 images, int64 rows,
                                       int64 columns, S (*tile)[33]) {
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
    const int64 across = (columns + 31) / 32, down = (rows + 31) / 32;
    for (int64 item = blockIdx.x; item < images * down * across; item += gridDim.x) {
        const int64 rest = item / across, image = rest / down;
        const int64 row = 32 * (rest % down), column = 32 * (item % across);
        const S* source = x + image * rows * columns;
        T* target = y + image * rows * columns;
        for (int k = line; k < 32; k += 8)
            if (row + k < rows && column + lane < columns) tile[k][lane] = source[(row + k) * columns + column + lane];
        __syncthreads();
        for (int k = line; k < 32; k += 8)
            if (column + k < columns && row + lane < rows)
                target[(column + k) * rows + row + lane] = converted<T>(tile[lane][k]);
        __syncthreads();
    }
}

// The same where rows are few, as the channels of images: a thread takes a column. Neighbours read neighbours, and what
// they write lies together.
template <typename S, typename T>
__device__ inline void transpose_rows(const S* __restrict__ x, T* __restrict__ y, int64 images, int64 rows,
                                      int64 columns) {
    for (int64 item = first_item(); item < images * columns; item += item_step()) {
        const int64 image = item / columns, column = item - image * columns;
        const S* source = x + image * rows * columns + column;
        T* target = y + (image * columns + column) * rows;
        for (int64 row = 0; row < rows; ++row) target[row] = converted<T>(source[row * columns]);
    }
}

// The same where columns are few: a thread takes a row.
template <typename S, typename T>
__device__ inline void transpose_columns(const S* __restrict__ x, T* __restrict__ y, int64 images, int64 rows,
                                         int64 columns) {
    for (int64 item = first_item(); item < images * rows; item += item_step()) {
        const int64 image = item / rows, row = item - image * rows;
        const S* source = x + (image * rows + row) * columns;
        T* target = y + image * rows * columns + row;
        for (int64 column = 0; column < columns; ++column) target[column * rows] = converted<T>(source[column]);
    }
}

#define TRANSPOSE(suffix, S, T)                                                                                  \
    COOPERATIVE_KERNEL transpose##suffix(const S* __restrict__ x, T* __restrict__ y, int64 images, int64 rows,   \
                                         int64 columns) {                                                        \
        __shared__ S tile[32][33];                                                                               \
        transpose_tiles(x, y, images, rows, columns, tile);                                                      \
    }                                                                                                            \
    KERNEL transpose_few_rows##suffix(const S* __restrict__ x, T* __restrict__ y, int64 images, int64 rows,      \
                                      int64 columns) {                                                           \
        transpose_rows(x, y, images, rows, columns);                                                             \
    }                                                                                                            \
    KERNEL transpose_few_columns##suffix(const S* __restrict__ x, T* __restrict__ y, int64 images, int64 rows,   \
                                         int64 columns) {                                                        \
        transpose_columns(x, y, images, rows, columns);                                                          \
    }
FOR_EACH_PAIR(TRANSPOSE)
