// Copies: flat, of rows within wider rows, and of the transpose of each image. Elements are moved, not computed with.
#include "prelude.cuh"

KERNEL copy_flat(const float* x, float* y, int64 count) {
    if (x == y) return;
    const int64 fours = count / 4;
    for (int64 i = first_item(); i < fours; i += item_step()) store(y + 4 * i, load<4>(x + 4 * i));
    for (int64 i = 4 * fours + first_item(); i < count; i += item_step()) y[i] = x[i];
}

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
KERNEL copy_columns_4(const float* source, float* target, int64 rows, int64 width, int64 from, int64 to) {
    copy_columns<4>(source, target, rows, width, from, to);
}
KERNEL copy_columns_1(const float* source, float* target, int64 rows, int64 width, int64 from, int64 to) {
    copy_columns<1>(source, target, rows, width, from, to);
}

// y[image, column, row] = x[image, row, column], through tiles of 32 × 32, so that both sides are read and written along
// their rows. 256 threads. A row of the tile has one element more than it holds: a column then spreads over all banks.
COOPERATIVE_KERNEL transpose(const float* __restrict__ x, float* __restrict__ y, int64 images, int64 rows,
                             int64 columns) {
    __shared__ float tile[32][33];
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
    const int64 across = (columns + 31) / 32, down = (rows + 31) / 32;
    for (int64 item = blockIdx.x; item < images * down * across; item += gridDim.x) {
        const int64 rest = item / across, image = rest / down;
        const int64 row = 32 * (rest % down), column = 32 * (item % across);
        const float* source = x + image * rows * columns;
        float* target = y + image * rows * columns;
        for (int k = line; k < 32; k += 8)
            if (row + k < rows && column + lane < columns) tile[k][lane] = source[(row + k) * columns + column + lane];
        __syncthreads();
        for (int k = line; k < 32; k += 8)
            if (column + k < columns && row + lane < rows) target[(column + k) * rows + row + lane] = tile[lane][k];
        __syncthreads();
    }
}

// The same where rows are few, as the channels of images: a thread takes a column. Neighbours read neighbours, and what
// they write lies together.
KERNEL transpose_few_rows(const float* __restrict__ x, float* __restrict__ y, int64 images, int64 rows,
                          int64 columns) {
    for (int64 item = first_item(); item < images * columns; item += item_step()) {
        const int64 image = item / columns, column = item - image * columns;
        const float* source = x + image * rows * columns + column;
        float* target = y + (image * columns + column) * rows;
        for (int64 row = 0; row < rows; ++row) target[row] = source[row * columns];
    }
}

// The same where columns are few: a thread takes a row.
KERNEL transpose_few_columns(const float* __restrict__ x, float* __restrict__ y, int64 images, int64 rows,
                             int64 columns) {
    for (int64 item = first_item(); item < images * rows; item += item_step()) {
        const int64 image = item / rows, row = item - image * rows;
        const float* source = x + (image * rows + row) * columns;
        float* target = y + image * rows * columns + row;
        for (int64 column = 0; column < columns; ++column) target[column * rows] = source[column];
    }
}
