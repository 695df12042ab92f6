// Dropout with the numbers that numpy draws on the CPU: Philox 4x64 with 10 rounds (Salmon et al., 2011).
//
// numpy increments the counter before it draws, hands out the four words of a block in order, of each word the low half
// first, and makes a float32 of the upper 24 bits of a half. Element i, in plain C order of the logical shape, thus has
// half i % 8 of the block with the counter (i / 8 + 1, 0, stream, 0).
#include "prelude.cuh"

struct Block {
    uint64 word[4];

    // The number of element `place` of the block, in [0, 1).
    __device__ float uniform(int place) const {
        const uint64 pair = word[place / 2];
        const uint32 half = place % 2 ? (uint32)(pair >> 32) : (uint32)pair;
        return (float)(half >> 8) * (1.0f / 16777216.0f);
    }
};

__device__ inline Block philox(uint64 key0, uint64 key1, uint64 number, uint64 stream) {
    uint64 a = number + 1, b = 0, c = stream, d = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64 high0 = __umul64hi(0xD2E7470EE14C6C93ull, a), low0 = 0xD2E7470EE14C6C93ull * a;
        const uint64 high1 = __umul64hi(0xCA5A826395121157ull, c), low1 = 0xCA5A826395121157ull * c;
        a = high1 ^ b ^ key0;
        b = low1;
        c = high0 ^ d ^ key1;
        d = low0;
        key0 += 0x9E3779B97F4A7C15ull;
        key1 += 0xBB67AE8584CAA73Bull;
    }
    Block made;
    made.word[0] = a, made.word[1] = b, made.word[2] = c, made.word[3] = d;
    return made;
}

template <typename T> __device__ inline T kept(T x, float uniform, float threshold, float scale) {
    return from_float<T>(uniform < threshold ? 0.0f : __fmul_rn(to_float(x), scale));
}

// Elements in plain C order: a thread takes a block of eight.
template <typename T>
__device__ inline void drop_plain(const T* x, const int64* key, T* y, int64 count, int64 stream, float threshold,
                                  float scale) {
    constexpr int N = sizeof(T) == 2 ? 8 : 4;
    const uint64 seed = (uint64)key[0], step = (uint64)key[1];
    for (int64 number = first_item(); number < (count + 7) / 8; number += item_step()) {
        const Block block = philox(seed, step, (uint64)number, (uint64)stream);
        const int64 first = 8 * number;
        if (first + 8 <= count) {
#pragma unroll
            for (int part = 0; part < 8; part += N) {
                Pack<T, N> values = load<N>(x + first + part);
#pragma unroll
                for (int k = 0; k < N; ++k)
                    values.at[k] = kept(values.at[k], block.uniform(part + k), threshold, scale);
                store(y + first + part, values);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 8; ++k)
                if (first + k < count) y[first + k] = kept(x[first + k], block.uniform(k), threshold, scale);
        }
    }
}

// Elements that lie channels-last. A thread takes the part of a block that lies in one plane (image, channel), and its
// neighbours take the same part of the neighbouring channels, which lie beside it. A block that reaches into two planes
// is drawn for both. `runs` is the largest number of blocks that a plane touches.
template <typename T>
__device__ inline void drop_channels_last(const T* x, const int64* key, T* y, int64 planes, int64 channels,
                                          int64 pixels, int64 runs, int64 stream, float threshold, float scale) {
    const uint64 seed = (uint64)key[0], step = (uint64)key[1];
    for (int64 item = first_item(); item < planes * runs; item += item_step()) {
        const int64 channel = item % channels, rest = item / channels;
        const int64 run = rest % runs, image = rest / runs;
        const int64 base = (image * channels + channel) * pixels, number = base / 8 + run;
        const int64 pixel = 8 * number - base;  // of the block's first element; negative where it is in the plane before
        if (pixel >= pixels) continue;
        const Block block = philox(seed, step, (uint64)number, (uint64)stream);
        const int64 origin = image * channels * pixels + channel;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            if (pixel + k < 0 || pixel + k >= pixels) continue;
            const int64 at = origin + (pixel + k) * channels;
            y[at] = kept(x[at], block.uniform(k), threshold, scale);
        }
    }
}

#define DROPOUT(suffix, T)                                                                                       \
    KERNEL dropout_plain##suffix(const T* x, const int64* key, T* y, int64 count, int64 stream, float threshold, \
                                 float scale) {                                                                  \
        drop_plain(x, key, y, count, stream, threshold, scale);                                                  \
    }                                                                                                            \
    KERNEL dropout_channels_last##suffix(const T* x, const int64* key, T* y, int64 planes, int64 channels,       \
                                         int64 pixels, int64 runs, int64 stream, float threshold, float scale) { \
        drop_channels_last(x, key, y, planes, channels, pixels, runs, stream, threshold, scale);                 \
    }
FOR_EACH_TYPE(DROPOUT)
