// Attention on float16 keys and values by products of bfloat16 pairs, which have twice the rate of float32's: keys and
// values, queries and weights are rounded to 8 bits; products are summed in float32, in the order of dimensions and of
// positions as elsewhere. A product of two positions counts them from an even one on, whatever pieces they lie in.
#pragma once

// float16's exponents have another bias than bfloat16's. Instead of moving them, the queries make up for half of the
// difference and the scale of scores for the rest; for values, the weights for all of it. All three are exact.
constexpr float kHalfBias = 72057594037927936.0f; // 2^56

inline const uint16_t *halves(const Pairs *p) { return (const uint16_t *)p; }

// `count` floats, a multiple of 16, become pairs of neighbours, each times `factor`, in their place.
inline void to_pairs(float *x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i += 32) {
    const bool both = i + 16 < count;
    const Floats first = mul(load(x + i), splat(factor)), second = both ? mul(load(x + i + 16), splat(factor)) : splat(0);
    const NativeInt pairs = native_neighbours(first.v[0], second.v[0]);
    __builtin_memcpy(x + i / 2, &pairs, both ? 64 : 32);
  }
}

// Queries as pairs of dimensions. The tag puts off the search for the name, which other sets lack, until it is needed.
inline void pack_queries(const Pairs *, AttentionTile &a) {
  for (int64_t row = 0; row < a.rows; ++row)
    to_pairs(a.queries + row * a.store.padded, a.store.padded, kHalfBias);
  a.scale *= kHalfBias;
}

// Weights up to `limit` as pairs of an even position and the next.
inline void pack_weights(const Pairs *, int64_t rows, int64_t limit, float *scores) {
  for (int64_t row = 0; row < rows; ++row)
    to_pairs(scores + row * kSpan, limit, kHalfBias * kHalfBias);
}

inline uint32_t pair_at(const float *pairs, int64_t index) {
  uint32_t pair;
  __builtin_memcpy(&pair, pairs + index, 4);
  return pair;
}

template <int kRows, int kLines>
inline void score_pairs(const Pairs *keys, const float *queries, const HeadStore &s, Floats (&out)[kLines * kRows]) {
#pragma GCC unroll 20
  for (int n = 0; n < kLines * kRows; ++n)
    out[n] = splat(0);
  for (int32_t d = 0; d < s.dim; d += 2) {
    NativeInt key[kLines];
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line) {
      const uint16_t *at = halves(keys) + (line * s.dim + d) * 16;
      __builtin_prefetch(at + kLines * s.dim * 16);
      key[line] = native_half_pairs(at);
    }
#pragma GCC unroll 20
    for (int n = 0; n < kLines * kRows; ++n)
      out[n].v[0] = native_pair_dot(out[n].v[0], pair_at(queries + n / kLines * s.padded, d / 2), key[n % kLines]);
  }
}

template <int kRows, int kLanes>
inline void mix_pairs(const Pairs *values, int64_t stride, const float *weights, int64_t first, int64_t count,
                      float *mix) {
  constexpr int kSums = kRows * kLanes;
  Floats sums[kSums];
#pragma GCC unroll 20
  for (int n = 0; n < kSums; ++n)
    sums[n] = load(mix + n / kLanes * stride + n % kLanes * 16);
  // The rows `a` and `b` of two positions; `wanted` masks the weight of one that belongs to another piece.
  const auto add_pair = [&](int64_t pair, const uint16_t *a, const uint16_t *b, uint32_t wanted)
      __attribute__((always_inline)) {
    NativeInt value[kLanes];
#pragma GCC unroll 4
    for (int l = 0; l < kLanes; ++l) {
      if (l % 2 == 0) {
        __builtin_prefetch((const char *)(a + l * 16) + kKvAhead);
        __builtin_prefetch((const char *)(b + l * 16) + kKvAhead);
      }
      value[l] = native_half_pairs(a + l * 16, b + l * 16);
    }
#pragma GCC unroll 20
    for (int n = 0; n < kSums; ++n)
      sums[n].v[0] = native_pair_dot(sums[n].v[0], pair_at(weights + n / kLanes * kSpan, pair) & wanted,
                                     value[n % kLanes]);
  };
  const uint16_t *row = halves(values);
  const int64_t end = first + count;
  int64_t i = first;
  if (i % 2 && i < end) {
    add_pair(i / 2, row, row, 0x0000ffff);
    ++i;
    row += stride;
  }
  for (; i + 2 <= end; i += 2, row += 2 * stride)
    add_pair(i / 2, row, row + stride, 0xffffffff);
  if (i < end)
    add_pair(i / 2, row, row, 0xffff0000);
#pragma GCC unroll 20
  for (int n = 0; n < kSums; ++n)
    store(mix + n / kLanes * stride + n % kLanes * 16, sums[n]);
}
