// Rounding the data of a convolution to 8 bits when it runs.
//
// Each group of channels of an item has 255 steps from its least to its largest number, of which one is zero. The ranges
// are found first, in a pass of its own, so that no number is ever beyond them. The second pass writes bytes with the
// channels innermost, and the padding of the convolution around them: what stands for zero is a byte like any other, so
// that the convolution needs no padding, and subtracts the zero point's part as a constant of each output. A group with
// NaN or infinity gets factors of NaN, and so have all of its results.

#include "rounding.h"

#include "kernels.h"

#if COLLAGE_X86

#include <float.h>
#include <math.h>
#include <string.h>

#include <algorithm>

#include "streamed.h"

namespace {

using collage::first_lanes;
using collage::kLanes;
using collage::part;
using collage::Range;

using Shape = collage_rounding_shape;
using Buffers = collage_rounding_buffers;

constexpr int64_t kWide = 4;   // vectors of channels whose ranges are found at a time
constexpr int kOdd = 0x99;     // classes of numbers: NaN of both kinds, and both infinities
constexpr int64_t kTables = 5;

inline int64_t vectors_of(const Shape &s) { return (s.channels + kLanes - 1) / kLanes; }

inline int64_t pixels_of(const Shape &s) { return s.in[0] * s.in[1] * s.in[2]; }

// The tables of a share, with a number for each channel.
struct Tables {
  Tables(const Shape &s, const Buffers &b, int64_t share) {
    const int64_t length = vectors_of(s) * kLanes;
    low = b.tables + share * kTables * length;
    high = low + length;
    scale = high + length;
    inverse = scale + length;
    zero = reinterpret_cast<int32_t *>(inverse + length);
  }
  float *low;  // NaN where the channel has NaN or infinity
  float *high;
  float *scale;  // numbers are scale * (byte - zero)
  float *inverse;
  int32_t *zero;
};

template <bool NARROW>
inline __m512 load(const Shape &s, const Buffers &b, int64_t vector, int64_t pixel, __mmask16 mask) {
  return collage::load(b.src, NARROW, vector * s.from_block + pixel * s.from_pixel, mask);
}

// The ranges of WIDE vectors of channels, from `first` on, in some pixels.
template <int64_t WIDE, bool NARROW>
void ranges_of(const Shape &s, const Buffers &b, Range pixels, int64_t first, const Tables &to) {
  __m512 low[WIDE], high[WIDE];
  __mmask16 odd[WIDE], mask[WIDE];
#pragma GCC unroll 4
  for (int64_t j = 0; j < WIDE; ++j) {
    low[j] = high[j] = _mm512_setzero_ps();
    odd[j] = 0;
    mask[j] = first_lanes(s.channels - (first + j) * kLanes);
  }
  for (int64_t pixel = pixels.begin; pixel < pixels.end; ++pixel) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < WIDE; ++j) {
      const __m512 x = load<NARROW>(s, b, first + j, pixel, mask[j]);
      low[j] = _mm512_maskz_min_ps(0xffff, low[j], x);
      high[j] = _mm512_maskz_max_ps(0xffff, high[j], x);
      odd[j] |= _mm512_fpclass_ps_mask(x, kOdd);
    }
  }
  for (int64_t j = 0; j < WIDE; ++j) {
    const int64_t at = (first + j) * kLanes;
    _mm512_storeu_ps(to.low + at, _mm512_mask_mov_ps(low[j], odd[j], _mm512_set1_ps(NAN)));
    _mm512_storeu_ps(to.high + at, high[j]);
  }
}

template <bool NARROW>
void find_ranges(const Shape &s, const Buffers &b, int64_t share) {
  const Range pixels = part({0, pixels_of(s)}, share, s.shares);
  const Tables to(s, b, share);
  const int64_t vectors = vectors_of(s);
  int64_t vector = 0;
  for (; vector + kWide <= vectors; vector += kWide) ranges_of<kWide, NARROW>(s, b, pixels, vector, to);
  for (; vector < vectors; ++vector) ranges_of<1, NARROW>(s, b, pixels, vector, to);
}

// What all shares have found: the least and the largest number of each channel, or NaN where some number is odd.
void merge_shares(const Shape &s, const Buffers &b, float *lows, float *highs) {
  const int64_t length = vectors_of(s) * kLanes;
  for (int64_t at = 0; at < length; at += kLanes) {
    __m512 low = _mm512_setzero_ps(), high = low;
    __mmask16 odd = 0;
    for (int64_t share = 0; share < s.shares; ++share) {
      const Tables from(s, b, share);
      const __m512 least = _mm512_loadu_ps(from.low + at);
      odd |= _mm512_cmp_ps_mask(least, least, _CMP_UNORD_Q);
      low = _mm512_maskz_min_ps(0xffff, low, least);
      high = _mm512_maskz_max_ps(0xffff, high, _mm512_loadu_ps(from.high + at));
    }
    _mm512_storeu_ps(lows + at, _mm512_mask_mov_ps(low, odd, _mm512_set1_ps(NAN)));
    _mm512_storeu_ps(highs + at, high);
  }
}

// Gives all channels from `first` on, `count` of them, the range of them together.
void join(float *lows, float *highs, int64_t first, int64_t count) {
  __m512 low = _mm512_setzero_ps(), high = low;
  __mmask16 odd = 0;
  for (int64_t at = first; at < first + count; at += kLanes) {
    const __mmask16 mask = first_lanes(first + count - at);
    const __m512 least = _mm512_maskz_loadu_ps(mask, lows + at);
    odd |= _mm512_cmp_ps_mask(least, least, _CMP_UNORD_Q);
    low = _mm512_maskz_min_ps(0xffff, low, least);
    high = _mm512_maskz_max_ps(0xffff, high, _mm512_maskz_loadu_ps(mask, highs + at));
  }
  float some[2][kLanes];
  _mm512_storeu_ps(some[0], low);
  _mm512_storeu_ps(some[1], high);
  std::fill(lows + first, lows + first + count, odd ? NAN : *std::min_element(some[0], some[0] + kLanes));
  std::fill(highs + first, highs + first + count, *std::max_element(some[1], some[1] + kLanes));
}

// Fills in the share's tables of steps. Each share does so by itself, which takes little time beside its rows.
void plan_steps(const Shape &s, const Buffers &b, const Tables &to) {
  // Other shares still read what this one has found, so that the joined ranges are elsewhere until they are used.
  float *const lows = to.scale, *const highs = to.inverse;
  merge_shares(s, b, lows, highs);
  if (const int64_t each = s.channels / s.groups; each > 1)
    for (int64_t group = 0; group < s.groups; ++group) join(lows, highs, group * each, each);
  const __m512 most = _mm512_set1_ps(255);
  for (int64_t at = 0; at < vectors_of(s) * kLanes; at += kLanes) {
    const __m512 low = _mm512_loadu_ps(lows + at), high = _mm512_loadu_ps(highs + at);
    const __mmask16 odd = _mm512_cmp_ps_mask(low, low, _CMP_UNORD_Q);
    const __m512 scale = _mm512_maskz_max_ps(0xffff, high / most - low / most, _mm512_set1_ps(FLT_MIN));
    const __m512 inverse = _mm512_set1_ps(1) / scale;
    const __m512i zero = _mm512_maskz_cvtps_epi32(~odd, -low * inverse);
    _mm512_storeu_ps(to.scale + at, _mm512_mask_mov_ps(scale, odd, _mm512_set1_ps(NAN)));
    _mm512_storeu_ps(to.inverse + at, _mm512_maskz_mov_ps(~odd, inverse));
    _mm512_storeu_si512(to.zero + at, _mm512_maskz_min_epi32(0xffff, zero, _mm512_set1_epi32(255)));
  }
}

void scale_outputs(const Shape &s, const Buffers &b, const Tables &steps, int64_t share) {
  const Range outputs = part({0, s.outputs}, share, s.shares);
  const int64_t each = s.outputs / s.groups, inputs = s.channels / s.groups;
  for (int64_t at = outputs.begin; at < outputs.end;) {
    const int64_t group = at / each, end = std::min(outputs.end, (group + 1) * each);
    const float scale = steps.scale[group * inputs];
    const double zero = steps.zero[group * inputs];
    for (; at < end; ++at) {
      b.scales[at] = scale * b.factors[at];
      b.terms[at] = float(b.bias[at] - zero * b.sums[at] * b.scales[at]);
    }
  }
}

inline __m128i bytes_of(__m512 x, __m512 inverse, __m512i zero) {
  const __m512i steps = _mm512_maskz_cvtps_epi32(0xffff, x * inverse);
  const __m512i moved = _mm512_maskz_max_epi32(0xffff, _mm512_setzero_si512(), _mm512_add_epi32(steps, zero));
  return _mm512_maskz_cvtusepi32_epi8(0xffff, moved);
}

// What rounds pixels. With one group and the channels innermost they are `even`: elements that lie together.
template <bool NARROW>
class Rounder {
 public:
  Rounder(const Shape &s, const Buffers &b, const Tables &steps)
      : s_(s), b_(b), steps_(steps), even_(s.groups == 1 && s.from_pixel == s.channels) {}

  void row(int64_t number) const {
    const int64_t plane = number / s_.out[1] - s_.begin[0], row = number % s_.out[1] - s_.begin[1];
    uint8_t *to = b_.dst + number * s_.out[2] * s_.channels;
    const bool inside = plane >= 0 && plane < s_.in[0] && row >= 0 && row < s_.in[1];
    const int64_t before = inside ? std::min(s_.begin[2], s_.out[2]) : s_.out[2];
    const int64_t count = std::min(s_.in[2], s_.out[2] - before);
    to = zeros(to, before);
    if (!inside) return;
    to = pixels(to, (plane * s_.in[1] + row) * s_.in[2], count);
    zeros(to, s_.out[2] - before - count);
  }

 private:
  uint8_t *zeros(uint8_t *to, int64_t count) const {
    if (s_.groups == 1) {
      memset(to, steps_.zero[0], count * s_.channels);
      return to + count * s_.channels;
    }
    for (int64_t pixel = 0; pixel < count; ++pixel, to += s_.channels)
      for (int64_t at = 0; at < s_.channels; at += kLanes) {
        const __m512i zero = _mm512_loadu_si512(steps_.zero + at);
        _mm_mask_storeu_epi8(to + at, first_lanes(s_.channels - at), _mm512_maskz_cvtusepi32_epi8(0xffff, zero));
      }
    return to;
  }

  uint8_t *pixels(uint8_t *to, int64_t first, int64_t count) const {
    if (even_) {
      elements(to, first * s_.channels, count * s_.channels);
      return to + count * s_.channels;
    }
    const int64_t vectors = vectors_of(s_);
    for (int64_t pixel = first; pixel < first + count; ++pixel, to += s_.channels)
      for (int64_t vector = 0; vector < vectors; ++vector) {
        const int64_t at = vector * kLanes;
        const __mmask16 mask = first_lanes(s_.channels - at);
        const __m512 x = load<NARROW>(s_, b_, vector, pixel, mask);
        const __m128i found =
            bytes_of(x, _mm512_loadu_ps(steps_.inverse + at), _mm512_loadu_si512(steps_.zero + at));
        _mm_mask_storeu_epi8(to + at, mask, found);
      }
    return to;
  }

  void elements(uint8_t *to, int64_t first, int64_t count) const {
    const __m512 inverse = _mm512_set1_ps(steps_.inverse[0]);
    const __m512i zero = _mm512_set1_epi32(steps_.zero[0]);
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
      const __m128i found = bytes_of(collage::load(b_.src, NARROW, first + at, 0xffff), inverse, zero);
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to + at), found);
    }
    if (at == count) return;
    const __mmask16 mask = first_lanes(count - at);
    _mm_mask_storeu_epi8(to + at, mask, bytes_of(collage::load(b_.src, NARROW, first + at, mask), inverse, zero));
  }

  const Shape &s_;
  const Buffers &b_;
  const Tables &steps_;
  const bool even_;
};

template <bool NARROW>
void round_share(const Shape &s, const Buffers &b, int64_t share) {
  const Tables steps(s, b, share);
  plan_steps(s, b, steps);
  scale_outputs(s, b, steps, share);
  const Rounder<NARROW> rounder(s, b, steps);
  const Range rows = part({0, s.out[0] * s.out[1]}, share, s.shares);
  for (int64_t row = rows.begin; row < rows.end; ++row) rounder.row(row);
}

}  // namespace

extern "C" int collage_find_ranges(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  (shape.src_narrow ? find_ranges<true> : find_ranges<false>)(shape, *static_cast<const Buffers *>(b), n);
  return 0;
}

extern "C" int collage_round(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  (shape.src_narrow ? round_share<true> : round_share<false>)(shape, *static_cast<const Buffers *>(b), n);
  return 0;
}

#include "target_end.h"

#else

extern "C" int collage_find_ranges(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

extern "C" int collage_round(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
