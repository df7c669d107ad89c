// Direct convolution for narrow groups and for single channels, where a matrix product would have nothing to do.
//
// A vector holds 16 output channels of a pixel, and a tile is 14 pixels of a row, in registers. The tile goes through
// the input row from left to right: each input pixel is made into N vectors once (`Feed`), and they are multiplied
// with the weights of all columns of the window that it lies in, which are in registers too. With 3 columns and N = 4
// that is 12 multiplications for a load and 4 permutations, or for 4 broadcasts.

#include "direct_conv.h"

#include "kernels.h"

#if COLLAGE_X86
#include <algorithm>

#include "avx512.h"

namespace {

using Shape = collage_direct_conv_shape;
using Buffers = collage_direct_conv_buffers;

constexpr int64_t kVector = 16;
constexpr int kTile = 14;
constexpr __mmask16 kAll = 0xffff;

// A tile, and the part of the input that its windows see.
struct Place {
  const float *src;      // the pixel under the first corner of the first window that lies inside, as if rows had no end
  const float *weights;  // of that corner
  int64_t planes, rows;  // of the windows that lie inside
  int64_t skip;          // weights of rows that lie outside, from one plane to the next
  uint64_t columns;      // bit i: the column i to the right of src lies inside and is needed
  float *dst;
  const float *residual;
  int pixels;
  __mmask16 lanes;       // channels
};

// Vectors that an input pixel becomes at a time.
constexpr int count_of(int feed) { return feed == COLLAGE_DEPTHWISE ? 1 : 4; }

template <int FEED>
[[gnu::always_inline]] inline void load(const float *pixel, __mmask16 lanes, bool swapped, __m512 (&x)[count_of(FEED)]) {
  if constexpr (FEED == COLLAGE_BROADCAST) {
    for (int i = 0; i < 4; ++i) x[i] = _mm512_set1_ps(pixel[i]);
  } else {
    __m512 all = _mm512_maskz_loadu_ps(lanes, pixel);
    if constexpr (FEED == COLLAGE_DEPTHWISE) {
      x[0] = all;
    } else {
      if (swapped) all = _mm512_maskz_shuffle_f32x4(kAll, all, all, 0xB1);
      x[0] = _mm512_maskz_permute_ps(kAll, all, 0x00);
      x[1] = _mm512_maskz_permute_ps(kAll, all, 0x55);
      x[2] = _mm512_maskz_permute_ps(kAll, all, 0xAA);
      x[3] = _mm512_maskz_permute_ps(kAll, all, 0xFF);
    }
  }
}

// What one row of the windows adds to the tile.
template <int FEED, int STRIDE, int WIDTH>
[[gnu::always_inline]] inline void sweep(const float *src, int64_t pixel, const float *weights, const Place &at,
                                         bool swapped, __m512 (&sum)[kTile]) {
  constexpr int N = count_of(FEED);
  __m512 w[WIDTH][N];
#pragma GCC unroll 8
  for (int k = 0; k < WIDTH; ++k)
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) w[k][i] = _mm512_loadu_ps(weights + (k * N + i) * kVector);
#pragma GCC unroll 64
  for (int column = 0; column < (kTile - 1) * STRIDE + WIDTH; ++column) {
    if (at.columns >> column & 1) {
      __m512 x[N];
      load<FEED>(src + column * pixel, at.lanes, swapped, x);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
#pragma GCC unroll 8
        for (int k = 0; k < WIDTH; ++k) {
          const int to = (column - k) / STRIDE;
          if (column >= k && (column - k) % STRIDE == 0 && to < kTile)
            sum[to] = _mm512_fmadd_ps(x[i], w[k][i], sum[to]);
        }
      }
    }
  }
}

template <int FEED, int STRIDE, int WIDTH>
void tile(const Shape &s, const float *bias, int64_t vector, const Place &at) {
  constexpr int N = count_of(FEED);
  const int64_t first = FEED == COLLAGE_BROADCAST ? vector * kVector / s.group_outputs * s.group_inputs : vector * kVector;
  const int64_t chunks = FEED == COLLAGE_DEPTHWISE ? 1 : s.group_inputs / N;
  __m512 sum[kTile];
#pragma GCC unroll 16
  for (int i = 0; i < kTile; ++i) sum[i] = _mm512_loadu_ps(bias + vector * kVector);
  const float *weights = at.weights;
  for (int64_t plane = 0; plane < at.planes; ++plane, weights += at.skip) {
    for (int64_t row = 0; row < at.rows; ++row) {
      const float *src = at.src + plane * s.from.plane + row * s.from.row;
      for (int64_t chunk = 0; chunk < chunks; ++chunk, weights += WIDTH * N * kVector) {
        const int64_t channel = FEED == COLLAGE_BROADCAST ? first + chunk * N : first;
        const float *from = src + channel / kVector * s.from.vector + channel % kVector;
        sweep<FEED, STRIDE, WIDTH>(from, s.from.pixel, weights, at, chunk != 0, sum);
      }
    }
  }
  const __m512 low = _mm512_set1_ps(s.low), high = _mm512_set1_ps(s.high);
#pragma GCC unroll 16
  for (int i = 0; i < kTile; ++i) {
    if (i >= at.pixels) continue;
    if (at.residual) sum[i] += _mm512_maskz_loadu_ps(at.lanes, at.residual + i * s.to.pixel);
    // NaN stays NaN: both return their second operand then.
    sum[i] = _mm512_maskz_min_ps(kAll, high, _mm512_maskz_max_ps(kAll, low, sum[i]));
    if (s.blocked)
      _mm512_storeu_ps(at.dst + i * s.to.pixel, _mm512_maskz_mov_ps(at.lanes, sum[i]));
    else
      _mm512_mask_storeu_ps(at.dst + i * s.to.pixel, at.lanes, sum[i]);
  }
}

// The part of a window that lies inside the input, along an axis.
struct Inside {
  int64_t start;         // of the window, in the input
  int64_t begin, count;  // in the window
  Inside(const Shape &s, int axis, int64_t output) : start(output * s.stride[axis] - s.pad[axis]) {
    begin = std::max<int64_t>(0, -start);
    count = std::max<int64_t>(0, std::min(s.window[axis], s.in[axis] - start) - begin);
  }
};

// A row of the result; those of all planes of all batches are numbered through.
template <int FEED, int STRIDE, int WIDTH>
void one_row(const Shape &s, const Buffers &b, int64_t vector, int64_t number) {
  const int64_t y = number % s.out[1], z = number / s.out[1] % s.out[0], batch = number / s.out[1] / s.out[0];
  const Inside planes(s, 0, z), rows(s, 1, y);
  const int64_t row_weights =
      WIDTH * kVector * (FEED == COLLAGE_DEPTHWISE ? 1 : s.group_inputs);
  const float *src = b.src + batch * s.from.batch + (planes.start + planes.begin) * s.from.plane +
                     (rows.start + rows.begin) * s.from.row;
  const int64_t dst = batch * s.to.batch + vector * s.to.vector + z * s.to.plane + y * s.to.row;
  Place at;
  at.planes = planes.count;
  at.rows = rows.count;
  at.skip = (s.window[1] - rows.count) * row_weights;
  at.weights = b.weights + ((vector * s.window[0] + planes.begin) * s.window[1] + rows.begin) * row_weights;
  at.lanes = __mmask16((1u << std::min(kVector, s.channels - vector * kVector)) - 1);
  const int64_t tiles = (s.out[2] + kTile - 1) / kTile;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = i * s.out[2] / tiles, end = (i + 1) * s.out[2] / tiles;
    const int64_t left = begin * STRIDE - s.pad[2];
    const int64_t low = std::max<int64_t>(0, -left), high = std::min((end - begin - 1) * STRIDE + WIDTH, s.in[2] - left);
    at.columns = low < high ? (uint64_t(1) << high) - (uint64_t(1) << low) : 0;
    at.src = src + left * s.from.pixel;
    at.dst = b.dst + dst + begin * s.to.pixel;
    at.residual = b.residual ? b.residual + dst + begin * s.to.pixel : nullptr;
    at.pixels = int(end - begin);
    tile<FEED, STRIDE, WIDTH>(s, b.bias, vector, at);
  }
}

template <int FEED, int STRIDE, int WIDTH>
int convolve(const Shape &s, const Buffers &b, int64_t share) {
  const int64_t rows = s.batch * s.out[0] * s.out[1], vectors = (s.channels + kVector - 1) / kVector;
  const int64_t all = s.by_vectors ? vectors : rows;
  const int64_t begin = share * all / s.shares, end = (share + 1) * all / s.shares;
  const int64_t first_row = s.by_vectors ? 0 : begin, last_row = s.by_vectors ? rows : end;
  const int64_t first = s.by_vectors ? begin : 0, last = s.by_vectors ? end : vectors;
  for (int64_t block = first_row; block < last_row; block += s.row_block)
    for (int64_t vector = first; vector < last; ++vector)
      for (int64_t row = block; row < std::min(block + s.row_block, last_row); ++row)
        one_row<FEED, STRIDE, WIDTH>(s, b, vector, row);
  return 0;
}

template <int FEED, int WIDTH>
int with_stride(const Shape &s, const Buffers &b, int64_t share) {
  switch (s.stride[2]) {
    case 1: return convolve<FEED, 1, WIDTH>(s, b, share);
    case 2: return convolve<FEED, 2, WIDTH>(s, b, share);
  }
  return COLLAGE_UNAVAILABLE;
}

template <int FEED>
int with_width(const Shape &s, const Buffers &b, int64_t share) {
  switch (s.window[2]) {
    case 1: return with_stride<FEED, 1>(s, b, share);
    case 3: return with_stride<FEED, 3>(s, b, share);
    case 5: return with_stride<FEED, 5>(s, b, share);
    case 7: return with_stride<FEED, 7>(s, b, share);
  }
  return COLLAGE_UNAVAILABLE;
}

}  // namespace

extern "C" int collage_direct_conv(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  const Buffers &buffers = *static_cast<const Buffers *>(b);
  switch (shape.feed) {
    case COLLAGE_DEPTHWISE: return with_width<COLLAGE_DEPTHWISE>(shape, buffers, n);
    case COLLAGE_LANES: return with_width<COLLAGE_LANES>(shape, buffers, n);
    case COLLAGE_BROADCAST: return with_width<COLLAGE_BROADCAST>(shape, buffers, n);
  }
  return COLLAGE_UNAVAILABLE;
}

#else

extern "C" int collage_direct_conv(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
