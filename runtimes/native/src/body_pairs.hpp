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

struct PairLine {
  NativeInt v;
};
inline PairLine load_wide(const Pairs *p) { return {native_half_pairs(halves(p))}; } // lines of two dimensions
inline Floats add_product(const float *x, int64_t at, PairLine line, Floats sum) {
  uint32_t pair;
  __builtin_memcpy(&pair, x + at, 4);
  return {{native_pair_dot(sum.v[0], pair, line.v)}};
}

// Calls `work(at, line)` for each pair of rows from an even position on. Of a pair that is cut, the line has zeros for the
// other row.
template <typename Work>
inline void each_line(const Pairs *values, int64_t stride, int64_t first, int64_t count, const Work &work) {
  const auto pair = [&](int64_t at, const Pairs *a, const Pairs *b, uint32_t wanted) __attribute__((always_inline)) {
    work(at, [&](int64_t lane) __attribute__((always_inline)) {
      fetch_values(a, lane);
      fetch_values(b, lane);
      return PairLine{native_half_pairs(halves(a + lane), halves(b + lane)) & (int32_t)wanted};
    });
  };
  const int64_t end = first + count;
  int64_t i = first;
  if (i % 2 && i < end) {
    pair(i / 2, values, values, 0x0000ffff);
    ++i;
    values += stride;
  }
  for (; i + 2 <= end; i += 2, values += 2 * stride)
    pair(i / 2, values, values + stride, 0xffffffff);
  if (i < end)
    pair(i / 2, values, values, 0xffff0000);
}
