// Choosing the next tokens from rows of logits: the likeliest ones, or ones that are drawn.
//
// A row is read once for its largest logit, and once for the weights e^((logit - largest) / temperature). Weights are
// from 0 to 1 and ordered like their bits. So what top-k and top-p keep is found without sorting all: a bound leaves few
// tokens in most distributions, and sums of groups with the same upper bits tell in which group top-p ends.

#include "sampling.h"

#include <string.h>

#include <algorithm>
#include <functional>
#include <new>
#include <vector>

#include "kernels.h"

#define INLINE __attribute__((always_inline)) inline

namespace {

using Batch = collage_sampling_batch;
using Choice = collage_sampling_choice;

constexpr int64_t kSpan = COLLAGE_SAMPLING_SPAN;
constexpr int64_t kLanes = 16;
constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kMinusInfinity = static_cast<int32_t>(0x807fffff);  // as `ordered` has it
constexpr int kGroupBits = 19;                                        // 16 groups for each power of two
constexpr int64_t kGroups = (int64_t{0x3f800000} >> kGroupBits) + 1;  // of weights from 0 to 1

// Integers that are ordered like the floats; both zeros are equal.
INLINE int32_t ordered(float x) {
  const float whole = x + 0.0f;
  int32_t bits;
  memcpy(&bits, &whole, sizeof(bits));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

INLINE int32_t bits_of(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

INLINE float float_of(int32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// The first of the largest logits, or COLLAGE_SAMPLING_NONE where not all are numbers or minus infinity.
INLINE int64_t likeliest(const float *x, int64_t n) {
  int64_t at = 0;
  int32_t most = INT32_MIN, least = INT32_MAX;
  for (int64_t begin = 0; begin < n; begin += kSpan) {
    const int64_t end = std::min(begin + kSpan, n);
    int32_t top = INT32_MIN, low = INT32_MAX;
    for (int64_t i = begin; i < end; ++i) {
      const int32_t each = ordered(x[i]);
      top = each > top ? each : top;
      low = each < low ? each : low;
    }
    if (top > most) most = top, at = begin;
    least = std::min(least, low);
  }
  if (most >= kInfinity || most <= kMinusInfinity || least < kMinusInfinity) return COLLAGE_SAMPLING_NONE;
  while (ordered(x[at]) != most) ++at;
  return at;
}

// e^x of x <= 0, to 2 units in the last place, and 0 below e^-87. x = n ln 2 + r, |r| <= ln 2 / 2. Negative floats are
// compared as integers, where a compiler makes no branch of it.
INLINE float exponential(float x) {
  constexpr int32_t kLeast = static_cast<int32_t>(0xc2ae0000);  // the bits of -87
  const int32_t given = bits_of(x) | INT32_MIN;
  const float inside = float_of(given < kLeast ? given : kLeast);
  const float moved = inside * 1.44269504089f + 12582912.0f;  // whose last bits are n
  const int32_t n = bits_of(moved) - 0x4b400000;
  const float whole = moved - 12582912.0f;
  const float r = (inside - whole * 0.693359375f) - whole * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  return float_of((bits_of(p) + (n << 23)) & -static_cast<int32_t>(given <= kLeast));
}

// The weights of a row, with zeros up to a whole span.
INLINE void weigh(const float *x, int64_t n, float top, float scale, float *weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = exponential((x[i] - top) * scale);
  for (int64_t i = n; i % kSpan; ++i) weights[i] = 0.0f;
}

INLINE double sum_of_span(const float *weights) {
  float parts[kLanes] = {};
  for (int64_t i = 0; i < kSpan; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) parts[j] += weights[i + j];
  double sum = 0;
  for (float each : parts) sum += each;
  return sum;
}

// A token of all. `best` is for the one draw in 2^53 that rounding moves behind the last token.
INLINE int64_t drawn_of_all(const float *weights, int64_t n, double draw, int64_t best) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kSpan) total += sum_of_span(weights + i);
  const double wanted = draw * total;
  double before = 0;
  for (int64_t begin = 0; begin < n; begin += kSpan) {
    const double after = before + sum_of_span(weights + begin);
    if (after > wanted) {
      int64_t last = best;
      for (int64_t i = begin; i < begin + kSpan && before <= wanted; ++i) {
        before += weights[i];
        if (weights[i] > 0.0f) last = i;
      }
      return last;
    }
    before = after;
  }
  return best;
}

struct Kept {
  Kept() {}  // without zeros: a vector of all tokens is made longer for each row
  Kept(float its_weight, int64_t its_token) : weight(its_weight), token(static_cast<int32_t>(its_token)) {}
  float weight;
  int32_t token;
};

bool likelier(const Kept &one, const Kept &other) {
  return one.weight > other.weight || (one.weight == other.weight && one.token < other.token);
}

int64_t group_of(float weight) { return bits_of(weight) >> kGroupBits; }

// Calls `visit` with the number of each token of blocks in which a weight is `least` or more.
template <typename Visit>
INLINE void visit_blocks(const float *weights, int64_t n, float least, const Visit &visit) {
  const int32_t bound = bits_of(least);
  for (int64_t begin = 0; begin < n; begin += kLanes) {  // there are zeros up to a whole span
    int32_t any = 0;
    for (int64_t j = 0; j < kLanes; ++j) any |= bits_of(weights[begin + j]) >= bound;
    if (!any) continue;
    for (int64_t i = begin; i < std::min(begin + kLanes, n); ++i) visit(i);
  }
}

// The tokens whose weights are `least` or more, in order. Each is written, and the next one over it if it is none.
INLINE void collect(const float *weights, int64_t n, float least, std::vector<Kept> *kept) {
  kept->resize(n);
  Kept *at = kept->data();
  visit_blocks(weights, n, least, [&](int64_t i) {
    *at = {weights[i], i};
    at += weights[i] >= least;
  });
  kept->resize(at - kept->data());
}

// The k-th largest of the maxima of some tokens each is no larger than the k-th largest of all.
INLINE void keep_top_k(const float *weights, int64_t n, int64_t k, std::vector<Kept> *kept) {
  std::vector<float> tops((n + kLanes - 1) / kLanes);
  for (int64_t block = 0; block < static_cast<int64_t>(tops.size()); ++block) {
    int32_t top = 0;
    for (int64_t j = 0; j < kLanes; ++j) top = std::max(top, bits_of(weights[block * kLanes + j]));
    tops[block] = float_of(top);
  }
  float least = 0.0f;
  if (k <= static_cast<int64_t>(tops.size())) {
    std::nth_element(tops.begin(), tops.begin() + k - 1, tops.end(), std::greater<float>());
    least = tops[k - 1];
  }
  collect(weights, n, least, kept);
  std::nth_element(kept->begin(), kept->begin() + k - 1, kept->end(), likelier);
  kept->resize(k);
}

double sum_of(const std::vector<Kept> &kept) {
  double sum = 0;
  for (const Kept &each : kept) sum += each.weight;
  return sum;
}

// The group in which the likeliest tokens have `wanted` together, from the sums of groups.
int64_t last_group(const std::vector<double> &sums, double wanted) {
  int64_t group = kGroups - 1;
  for (double sum = sums[group]; sum < wanted && group > 0; sum += sums[group]) --group;
  return group;
}

// Of tokens in `group` and above it the fewest that have `wanted` together. Those above are all among them.
void keep_sum(double wanted, int64_t group, std::vector<Kept> *kept) {
  const auto first = std::partition(kept->begin(), kept->end(),
                                    [&](const Kept &each) { return group_of(each.weight) > group; });
  std::sort(first, kept->end(), likelier);
  double sum = 0;
  for (auto each = kept->begin(); each != kept->end(); ++each) {
    sum += each->weight;
    if (each >= first && sum >= wanted) {
      kept->erase(each + 1, kept->end());
      return;
    }
  }
}

void keep_top_p(double p, std::vector<Kept> *kept) { keep_sum(p * sum_of(*kept), kGroups, kept); }

// Tokens below the cut have at most 1 - p together, so all that top-p keeps are above it.
INLINE void keep_top_p_of_all(const float *weights, int64_t n, double p, std::vector<Kept> *kept) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kSpan) total += sum_of_span(weights + i);
  constexpr double kSlack = 1 - 1e-5;  // sums of floats are rounded
  const float cut = static_cast<float>((1 - p) * total / static_cast<double>(n) * kSlack);
  std::vector<double> sums(kGroups);
  visit_blocks(weights, n, cut, [&](int64_t i) { sums[group_of(weights[i])] += weights[i]; });
  const int64_t group = last_group(sums, p * total);
  collect(weights, n, float_of(static_cast<int32_t>(group << kGroupBits)), kept);
  keep_sum(p * total, group, kept);
}

INLINE int64_t drawn_of_kept(const float *weights, int64_t n, const Choice &how, int64_t best) {
  static thread_local std::vector<Kept> kept;  // with room for all tokens after the first call
  kept.clear();
  const bool counted = how.top_k > 0 && how.top_k < n;
  if (counted) keep_top_k(weights, n, how.top_k, &kept);
  if (how.top_p < 1) {
    if (counted)
      keep_top_p(how.top_p, &kept);
    else
      keep_top_p_of_all(weights, n, how.top_p, &kept);
  }
  if (kept.empty()) collect(weights, n, static_cast<float>(how.min_p), &kept);
  kept.erase(std::remove_if(kept.begin(), kept.end(), [&](const Kept &each) { return each.weight < how.min_p; }),
             kept.end());
  const double wanted = how.draw * sum_of(kept);
  double sum = 0;
  for (const Kept &each : kept) {
    sum += each.weight;
    if (sum > wanted) return each.token;
  }
  return best;
}

INLINE int64_t choose(const float *x, int64_t n, const Choice &how, float *weights) {
  const int64_t best = likeliest(x, n);
  if (best == COLLAGE_SAMPLING_NONE || how.scale == 0) return best;
  weigh(x, n, x[best], static_cast<float>(how.scale), weights);
  const bool all = (how.top_k <= 0 || how.top_k >= n) && how.top_p >= 1 && how.min_p <= 0;
  return all ? drawn_of_all(weights, n, how.draw, best) : drawn_of_kept(weights, n, how, best);
}

INLINE void choose_share(const Batch &b, int64_t share) {
  const int64_t room = (b.vocabulary + kSpan - 1) / kSpan * kSpan;
  for (int64_t row = share; row < b.count; row += b.shares)
    b.tokens[row] = choose(b.rows[row], b.vocabulary, b.choices[row], b.weights + share * room);
}

// The compiler makes vectors of each, as wide as it may.
void choose_any(const Batch &b, int64_t share) { choose_share(b, share); }

using Run = void (*)(const Batch &, int64_t);

#if COLLAGE_X86

__attribute__((target("avx2,fma"))) void choose_256(const Batch &b, int64_t share) { choose_share(b, share); }

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq" COLLAGE_WIDE)))
void choose_512(const Batch &b, int64_t share) {
  choose_share(b, share);
}

Run widest() {
  switch (collage_kernels_isa()) {
    case 512: return choose_512;
    case 256: return choose_256;
    default: return choose_any;
  }
}

#else

Run widest() { return choose_any; }

#endif

}  // namespace

extern "C" int collage_sampling_choose(void *, void *b, intptr_t n, void *) {
  static const Run run = widest();
  try {
    run(*static_cast<const Batch *>(b), n);
  } catch (const std::bad_alloc &) {
    return COLLAGE_SAMPLING_NO_MEMORY;
  }
  return 0;
}
