// Attention on float16 keys and values by products of bfloat16 pairs, which have twice the rate of float32's. Keys,
// values, queries and weights are rounded to 8 bits; products are summed in float32, in the order of dimensions and of
// positions. A product takes positions 2n and 2n + 1, whichever pieces hold them, so bits do not depend on the pieces.
#pragma once

// Keys and values are multiplied with float16's exponent bias, 2^-112 times their value (native_half_pairs). Queries make
// up for 2^56 and the scale of scores for the other 2^56; weights make up for all of it. Powers of two are exact.
constexpr float kHalfBias = 72057594037927936.0f; // 2^56

inline const uint16_t *halves(const Paired *p) { return (const uint16_t *)p; }

// 32 floats become pairs of neighbours, each times `factor`.
inline NativeInt to_pairs(Floats first, Floats second, float factor) {
  return native_neighbours(mul(first, splat(factor)).v[0], mul(second, splat(factor)).v[0]);
}

// Queries become pairs of dimensions, in place. The first argument selects the overload when the template is instantiated:
// other kernel sets have no such function.
inline void pair_queries(const Paired *, AttentionTile &a) {
  for (int64_t row = 0; row < a.rows; ++row)
    for (int64_t i = 0; i < a.kv.query_stride; i += 32) {
      float *x = a.queries + row * a.kv.query_stride + i;
      const bool both = i + 16 < a.kv.query_stride;
      const NativeInt pairs = to_pairs(load(x), both ? load(x + 16) : splat(0), kHalfBias);
      __builtin_memcpy(x - i / 2, &pairs, both ? 64 : 32);
    }
  a.scale *= kHalfBias;
}

// Weights as pairs of an even position and the next.
inline void store_weight_pairs(float *row, int64_t at, Floats first, Floats second) {
  const NativeInt pairs = to_pairs(first, second, kHalfBias * kHalfBias);
  __builtin_memcpy(row + at / 2, &pairs, 64);
}
inline void store_weights(const Paired *, float *row, int64_t at, Floats first, Floats second) {
  store_weight_pairs(row, at, first, second);
}
inline void store_weights(const ReadyPair *, float *row, int64_t at, Floats first, Floats second) {
  store_weight_pairs(row, at, first, second);
}

struct PairLine {
  NativeInt v;
};
inline PairLine load_wide(const Paired *p) { return {native_half_pairs(halves(p))}; } // lines of two dimensions
inline PairLine load_wide(const ReadyPair *p) {
  PairLine line;
  __builtin_memcpy(&line, p, 64);
  return line;
}
inline void store_wide(ReadyPair *p, PairLine line) { __builtin_memcpy(p, &line, 64); }
inline Floats add_product(const float *x, int64_t at, PairLine line, Floats sum) {
  uint32_t pair;
  __builtin_memcpy(&pair, x + at, 4);
  return {{native_pair_dot(sum.v[0], pair, line.v)}};
}

// Calls `work(at, line)` for each pair of rows 2n, 2n + 1. Where the piece has one of them, the other counts as zeros.
template <typename Work>
inline void each_line(const Paired *values, int64_t stride, Piece piece, const Work &work) {
  const auto pair = [&](int64_t at, const Paired *a, const Paired *b, uint32_t wanted) __attribute__((always_inline)) {
    work(at, [&](int64_t lane) __attribute__((always_inline)) {
      fetch_values(a, lane);
      fetch_values(b, lane);
      return PairLine{native_half_pairs(halves(a + lane), halves(b + lane)) & (int32_t)wanted};
    });
  };
  const Paired *row = values + piece.slot * stride;
  int64_t i = piece.position % kSpan;
  const int64_t end = i + piece.count;
  if (i % 2 && i < end) {
    pair(i / 2, row, row, 0x0000ffff);
    ++i;
    row += stride;
  }
  for (; i + 2 <= end; i += 2, row += 2 * stride)
    pair(i / 2, row, row + stride, 0xffffffff);
  if (i < end)
    pair(i / 2, row, row, 0xffff0000);
}

// The same for pairs that were converted before, [position / 2][stride].
template <typename Work>
inline void each_line(const ReadyPair *values, int64_t stride, Piece piece, const Work &work) {
  const int64_t first = piece.position % kSpan, end = (first + piece.count + 1) / 2;
  const ReadyPair *row = values + first / 2 * stride;
  for (int64_t i = first / 2; i < end; ++i, row += stride)
    work(i, [&](int64_t lane) __attribute__((always_inline)) { return load_wide(row + lane); });
}
