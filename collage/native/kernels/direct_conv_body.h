// Direct convolution for narrow groups and for single channels, where a matrix product would have nothing to do.
//
// A vector holds 16 channels of a pixel, and a tile is some pixels of a row of the result, in registers. It goes
// through rows of the input from left to right: each input pixel is loaded once and multiplied with the weights of
// all columns of the window that it lies in, which are in registers too.
//
// For groups of 4 channels, each input is to be multiplied with 4 weights, for the outputs in the same 128 bits. No
// input is moved for that: there are 4 sums for each pixel, and sum r has in element i of 128 bits what element
// i + r of the result is to get. They are rotated and added at the end. Wider groups see, besides the input as it
// is, the input with its 128 bits exchanged: 1 with 0 and 3 with 2 (8 channels), and then 2 and 3 with 0 and 1 too
// (16). A shuffle feeds 12 multiplications then, where a broadcast or permutation of each input feeds 3: groups of 32
// channels at every other pixel took a fifth longer. Groups that do not fill vectors see their neighbours' channels
// too, with weights of 0; an infinite input then makes NaN of theirs.
//
// With AVX2 a register has half a vector, and a tile is computed for one half after the other.
//
// Before this is included, `Item` is the type of what is read and written, and `load` and `store` bring it to and from
// registers of float32. All arithmetic is float32, and so are weights, bias and bounds.

#ifndef COLLAGE_NATIVE_KERNELS_DIRECT_CONV_BODY_H
#define COLLAGE_NATIVE_KERNELS_DIRECT_CONV_BODY_H

namespace {

using Shape = collage_direct_conv_shape;
using Buffers = collage_direct_conv_buffers;

using collage::kHalves;
using collage::kRegister;
using collage::kRegisters;
using collage::Mask;
using collage::Register;

constexpr int64_t kVector = 16;

// Sums of a pixel, and pixels of a tile: enough sums to hide the latency of multiplications, and no more than fit in
// 32 registers together with the weights of 3 columns; of 16 registers, weights have none if there are several rotations.
constexpr int rotations_of(int reach) { return reach == COLLAGE_ITSELF ? 1 : 4; }
constexpr int pixels_of(int reach) {
  return reach == COLLAGE_ITSELF ? (kHalves == 1 ? 14 : 8) : (kHalves == 1 ? 4 : 3);
}

template <int REACH>
struct Sums {
  Register at[pixels_of(REACH)][rotations_of(REACH)];
};

// A tile, and the part of the input that its windows see.
struct Place {
  // The pixel under the first corner of the first window that lies inside, as if rows had no end, in the first vector
  // of inputs that is seen (of all if the sources are listed).
  const Item *src;
  const int64_t *sources, *end;
  Mask last_lanes;  // channels of the last vector of inputs that is seen
  const float *weights;  // of that corner
  int64_t planes, rows;  // of the windows that lie inside
  int64_t skip;          // weights of rows that lie outside, from one plane to the next
  uint64_t columns;      // bit i: the column i to the right of src lies inside and is needed
  Item *dst;
  const Item *residual;
  int64_t pixels;
  Mask lanes;            // channels of the result
};

// Which of a vector's channels there are.
inline Mask lanes_of(int64_t channels, int64_t vector) { return collage::first_lanes(channels - vector * kVector); }

// Vectors of inputs that the tile sees.
template <int REACH>
[[gnu::always_inline]] inline int64_t blocks_of(const Place &at) {
  return REACH == COLLAGE_LISTED ? (at.end[-1] >> 2) - (*at.sources >> 2) + 1 : 1;
}

// Keeps the compiler from working out before a loop what is as cheap inside it (on GCC 12 that costs a third).
template <typename T>
[[gnu::always_inline]] inline void opaque(T &value) {
  asm volatile("" : "+r"(value));
}

// A whole register of weights or biases.
[[gnu::always_inline]] inline Register whole(const float *from) {
  return collage::load_register(collage::lanes_of_half(collage::kAllLanes, 0), from);
}

// What one row of the windows adds to the tile, from 16 channels whose 128 bits are exchanged: i becomes i ^ EXCHANGE.
// With AVX2 from the half of them that becomes `half`.
template <int REACH, int STRIDE, int WIDTH, int EXCHANGE>
[[gnu::always_inline]] inline void sweep(const Item *src, int64_t pixel, const float *weights, uint64_t columns,
                                         Mask lanes, int64_t half, Sums<REACH> &sums) {
  constexpr int kPixels = pixels_of(REACH), kRotations = rotations_of(REACH);
  constexpr bool kResident = WIDTH * kRotations + kPixels * kRotations <= kRegisters - 4 / kHalves;
  const int64_t from = half ^ collage::kOtherHalf<EXCHANGE>;
  lanes = collage::lanes_of_half(lanes, from);
  src += from * kRegister;
  weights += half * kRegister;
  Register w[WIDTH][kRotations];
  if constexpr (kResident) {
#pragma GCC unroll 8
    for (int k = 0; k < WIDTH; ++k)
#pragma GCC unroll 4
      for (int r = 0; r < kRotations; ++r) w[k][r] = whole(weights + (k * kRotations + r) * kVector);
  }
  opaque(columns);
#ifndef COLLAGE_AVX2
  asm volatile("" : "+Yk"(lanes));
#endif
#pragma GCC unroll 64
  for (int column = 0; column < (kPixels - 1) * STRIDE + WIDTH; ++column) {
    if (__builtin_expect(columns >> column & 1, 1)) {
      const Register x = collage::exchange<EXCHANGE>(load(lanes, src));
#pragma GCC unroll 8
      for (int k = 0; k < WIDTH; ++k) {
        const int to = (column - k) / STRIDE;
        if (column >= k && (column - k) % STRIDE == 0 && to < kPixels) {
#pragma GCC unroll 4
          for (int r = 0; r < kRotations; ++r) {
            const Register by = kResident ? w[k][r] : whole(weights + (k * kRotations + r) * kVector);
            sums.at[to][r] = collage::fma(x, by, sums.at[to][r]);
          }
        }
      }
      if constexpr (!kResident) opaque(weights);
    }
    src += pixel;
    opaque(src);
  }
}

template <int ROTATIONS>
[[gnu::always_inline]] inline Register total(const Register (&sums)[ROTATIONS]) {
  if constexpr (ROTATIONS == 1) {
    return sums[0];
  } else {
    const Register low = sums[0] + collage::rotate<1>(sums[1]);
    const Register high = sums[2] + collage::rotate<1>(sums[3]);
    return low + collage::rotate<2>(high);
  }
}

// Asks for what the tile below this one reads first: 128 channels of 56x56, last, take 77 us instead of 92, because
// no prefetcher of the processor expects a vector every 512 bytes. There the lines of a row share so few sets of the
// L1 cache that they wait in L2.
template <int REACH, int STRIDE, int LOCALITY>
[[gnu::always_inline]] inline void prefetch_below(const Shape &s, const Place &at) {
  const Item *below = at.src + at.rows * s.from.row;
  if (REACH == COLLAGE_LISTED) below += (*at.sources >> 2) * s.from.vector;
  for (int64_t left = blocks_of<REACH>(at); left > 0; --left, below += s.from.vector)
    for (int y = 0; y < STRIDE; ++y)
      for (int column = 0; column < pixels_of(REACH) * STRIDE; ++column)
        __builtin_prefetch(below + y * s.from.row + column * s.from.pixel, 0, LOCALITY);
}

template <int REACH, int STRIDE, int WIDTH>
[[gnu::always_inline]] inline void tile(const Shape &s, const float *bias, int64_t vector, const Place &at, int64_t half) {
  constexpr int kPixels = pixels_of(REACH), kRotations = rotations_of(REACH);
  constexpr int64_t kWeights = WIDTH * kRotations * kVector;
  Sums<REACH> sums;
#pragma GCC unroll 16
  for (int i = 0; i < kPixels; ++i) {
    sums.at[i][0] = whole(bias + vector * kVector + half * kRegister);
#pragma GCC unroll 4
    for (int r = 1; r < kRotations; ++r) sums.at[i][r] = collage::in_register(0.0f);
  }
  if (half == 0 && (REACH != COLLAGE_ITSELF || STRIDE == 1)) {
    if (s.blocked)
      prefetch_below<REACH, STRIDE, 3>(s, at);
    else
      prefetch_below<REACH, STRIDE, 2>(s, at);
  }
  const int64_t pixel = s.from.pixel, next_row = s.from.row;
  const float *weights = at.weights;
  const Item *of_plane = at.src;
  for (int64_t plane = 0; plane < at.planes; ++plane, weights += at.skip, of_plane += s.from.plane) {
    const Item *src = of_plane;
    for (int64_t row = 0; row < at.rows; ++row, src += next_row) {
      if constexpr (REACH == COLLAGE_LISTED) {
        for (const int64_t *source = at.sources; source != at.end; ++source, weights += kWeights) {
          const int64_t vector = *source >> 2;
          const Item *from = src + vector * s.from.vector;
          const Mask lanes = lanes_of(s.inputs, vector);
          switch (*source & 3) {
            case 0: sweep<REACH, STRIDE, WIDTH, 0>(from, pixel, weights, at.columns, lanes, half, sums); break;
            case 1: sweep<REACH, STRIDE, WIDTH, 1>(from, pixel, weights, at.columns, lanes, half, sums); break;
            case 2: sweep<REACH, STRIDE, WIDTH, 2>(from, pixel, weights, at.columns, lanes, half, sums); break;
            case 3: sweep<REACH, STRIDE, WIDTH, 3>(from, pixel, weights, at.columns, lanes, half, sums); break;
          }
        }
      } else {
        sweep<REACH, STRIDE, WIDTH, 0>(src, pixel, weights, at.columns, at.last_lanes, half, sums);
        weights += kWeights;
        if constexpr (REACH == COLLAGE_SAME_256_BITS) {
          sweep<REACH, STRIDE, WIDTH, 1>(src, pixel, weights, at.columns, at.last_lanes, half, sums);
          weights += kWeights;
        }
      }
    }
  }
  Register found[kPixels];
#pragma GCC unroll 16
  for (int i = 0; i < kPixels; ++i) found[i] = total<kRotations>(sums.at[i]);
  const Mask lanes = collage::lanes_of_half(at.lanes, half);
  if (at.residual) {
#pragma GCC unroll 16
    for (int i = 0; i < kPixels; ++i)
      if (i < at.pixels) found[i] += load(lanes, at.residual + i * s.to.pixel + half * kRegister);
  }
  const Register low = collage::in_register(s.low), high = collage::in_register(s.high);
  const Mask stored = s.blocked ? collage::lanes_of_half(collage::kAllLanes, half) : lanes;
  Item *dst = at.dst + half * kRegister;
#pragma GCC unroll 16
  for (int i = 0; i < kPixels; ++i) {
    if (i == at.pixels) return;
    store(dst, stored, collage::clamp(lanes, found[i], low, high));
    dst += s.to.pixel;
    opaque(dst);
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

// The rows of the result, numbered through all planes of all batches.
struct Row {
  int64_t batch, z, y;
  Row(const Shape &s, int64_t number)
      : batch(number / s.out[1] / s.out[0]), z(number / s.out[1] % s.out[0]), y(number % s.out[1]) {}
  void advance(const Shape &s) {
    if (++y < s.out[1]) return;
    y = 0;
    if (++z < s.out[0]) return;
    z = 0;
    ++batch;
  }
};

// `tiles` of `pixels` pixels make up a row of the result; the first `more` have one more.
struct Tiles {
  int64_t tiles, pixels, more;
  Tiles(int64_t row, int most) : tiles((row + most - 1) / most), pixels(row / tiles), more(row % tiles) {}
};

template <int REACH, int STRIDE, int WIDTH>
void one_row(const Shape &s, const Buffers &b, const Tiles &tiles, int64_t vector, const Row &row) {
  const Inside planes(s, 0, row.z), rows(s, 1, row.y);
  const int64_t point = WIDTH * rotations_of(REACH) * kVector;  // weights of a row of the window and a source
  const int64_t row_weights = point * (b.begin[vector + 1] - b.begin[vector]);
  Place at;
  at.sources = b.sources + b.begin[vector];
  at.end = b.sources + b.begin[vector + 1];
  at.last_lanes = lanes_of(s.inputs, at.end[-1] >> 2);
  at.planes = planes.count;
  at.rows = rows.count;
  at.skip = (s.window[1] - rows.count) * row_weights;
  at.weights = b.weights + b.begin[vector] * s.window[0] * s.window[1] * point +
               (planes.begin * s.window[1] + rows.begin) * row_weights;
  at.lanes = lanes_of(s.outputs, vector);
  const Item *src = reinterpret_cast<const Item *>(b.src) + row.batch * s.from.batch + (planes.start + planes.begin) * s.from.plane +
                     (rows.start + rows.begin) * s.from.row;
  if (REACH != COLLAGE_LISTED) src += (*at.sources >> 2) * s.from.vector;
  int64_t dst = row.batch * s.to.batch + vector * s.to.vector + row.z * s.to.plane + row.y * s.to.row;
  int64_t left = -s.pad[2];
  for (int64_t i = 0; i < tiles.tiles; ++i) {
    at.pixels = tiles.pixels + (i < tiles.more);
    const int64_t low = std::max<int64_t>(0, -left);
    const int64_t high = std::min<int64_t>((at.pixels - 1) * STRIDE + WIDTH, s.in[2] - left);
    at.columns = low < high ? (uint64_t(1) << high) - (uint64_t(1) << low) : 0;
    at.src = src + left * s.from.pixel;
    at.dst = reinterpret_cast<Item *>(b.dst) + dst;
    at.residual = b.residual ? reinterpret_cast<const Item *>(b.residual) + dst : nullptr;
    for (int64_t half = 0; half < kHalves; ++half) tile<REACH, STRIDE, WIDTH>(s, b.bias, vector, at, half);
    left += at.pixels * STRIDE;
    dst += at.pixels * s.to.pixel;
  }
}

template <int REACH, int STRIDE, int WIDTH>
int convolve(const Shape &s, const Buffers &b, int64_t share) {
  const int64_t rows = s.batch * s.out[0] * s.out[1], vectors = (s.outputs + kVector - 1) / kVector;
  const int64_t all = s.by_vectors ? vectors : rows;
  const int64_t begin = share * all / s.shares, end = (share + 1) * all / s.shares;
  const int64_t first_row = s.by_vectors ? 0 : begin, last_row = s.by_vectors ? rows : end;
  const int64_t first = s.by_vectors ? begin : 0, last = s.by_vectors ? end : vectors;
  const Tiles tiles(s.out[2], pixels_of(REACH));
  for (int64_t vector = first; vector < last; ++vector) {
    Row row(s, first_row);
    for (int64_t i = first_row; i < last_row; ++i, row.advance(s))
      one_row<REACH, STRIDE, WIDTH>(s, b, tiles, vector, row);
  }
  return 0;
}

template <int REACH, int WIDTH>
int with_stride(const Shape &s, const Buffers &b, int64_t share) {
  switch (s.stride[2]) {
    case 1: return convolve<REACH, 1, WIDTH>(s, b, share);
    case 2: return convolve<REACH, 2, WIDTH>(s, b, share);
  }
  return COLLAGE_UNAVAILABLE;
}

template <int REACH>
int with_width(const Shape &s, const Buffers &b, int64_t share) {
  switch (s.window[2]) {
    case 1: return with_stride<REACH, 1>(s, b, share);
    case 2: return with_stride<REACH, 2>(s, b, share);
    case 3: return with_stride<REACH, 3>(s, b, share);
    case 4: return with_stride<REACH, 4>(s, b, share);
    case 5: return with_stride<REACH, 5>(s, b, share);
    case 6: return with_stride<REACH, 6>(s, b, share);
    case 7: return with_stride<REACH, 7>(s, b, share);
  }
  return COLLAGE_UNAVAILABLE;
}

int direct_conv(void *a, void *b, intptr_t n) {
  const Shape &shape = *static_cast<const Shape *>(a);
  const Buffers &buffers = *static_cast<const Buffers *>(b);
  switch (shape.reach) {
    case COLLAGE_ITSELF: return with_width<COLLAGE_ITSELF>(shape, buffers, n);
    case COLLAGE_SAME_128_BITS: return with_width<COLLAGE_SAME_128_BITS>(shape, buffers, n);
    case COLLAGE_SAME_256_BITS: return with_width<COLLAGE_SAME_256_BITS>(shape, buffers, n);
    case COLLAGE_LISTED: return with_width<COLLAGE_LISTED>(shape, buffers, n);
  }
  return COLLAGE_UNAVAILABLE;
}

}  // namespace
#endif
