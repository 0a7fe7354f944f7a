// Latent attention's second term of scores: latent queries times latents, which are the values and lie row by row. A
// slot's product is summed in sixteen lanes, in the order of its numbers, and then across the lanes.
#pragma once

constexpr int kSlotsAtOnce = kLinesAtOnce; // their sums are independent, which hides latency

// found [kRows][kSlotsAtOnce] += products of lines of kRows latent queries, `stride` apart, with those of values.
template <int kRows, typename T>
inline void add_lines(const T *const (&value)[kSlotsAtOnce], int64_t lane, const float *queries, int64_t stride,
                      Floats (&found)[kRows * kSlotsAtOnce]) {
  Floats line[kSlotsAtOnce];
#pragma GCC unroll 4
  for (int s = 0; s < kSlotsAtOnce; ++s) {
    fetch_values(value[s], lane);
    line[s] = load_wide(value[s] + lane);
  }
#pragma GCC unroll 5
  for (int row = 0; row < kRows; ++row) {
    const Floats query = load(queries + row * stride);
#pragma GCC unroll 4
    for (int s = 0; s < kSlotsAtOnce; ++s)
      found[row * kSlotsAtOnce + s] = fma(query, line[s], found[row * kSlotsAtOnce + s]);
  }
}

// sums [kRows][16], from `slot` on: products of kRows latent queries with kSlotsAtOnce values. The last line may be partial.
// It is copied outside of the loop, where a call would spill the sums from their registers.
template <int kRows, typename T>
inline void slot_sums(const T *const (&value)[kSlotsAtOnce], const float *queries, int64_t dim, int64_t slot,
                      Floats (&sums)[kRows][16]) {
  Floats found[kRows * kSlotsAtOnce];
#pragma GCC unroll 20
  for (int n = 0; n < kRows * kSlotsAtOnce; ++n)
    found[n] = splat(0);
  int64_t lane = 0;
  for (; lane + 16 <= dim; lane += 16)
    add_lines<kRows>(value, lane, queries + lane, dim, found);
  if (lane < dim) {
    float last[kRows * 16] = {};
    for (int row = 0; row < kRows; ++row)
      for (int64_t i = lane; i < dim; ++i)
        last[row * 16 + i - lane] = queries[row * dim + i];
    add_lines<kRows>(value, lane, last, 16, found);
  }
#pragma GCC unroll 20
  for (int n = 0; n < kRows * kSlotsAtOnce; ++n)
    sums[n / kSlotsAtOnce][slot + n % kSlotsAtOnce] = found[n];
}

// Adds to the scores of kRows rows with a piece.
template <int kRows, typename T>
inline void add_latent_scores(const AttentionTile &a, const T *values, const Piece &piece, int64_t row) {
  const float *queries = a.latent_queries + row * a.kv.value_dim;
  float *scores = a.scores + row * kSpan + piece.position % kSpan;
  for (int64_t first = 0; first < piece.count; first += 16) {
    const int64_t count = smaller(16, piece.count - first);
    Floats sums[kRows][16] = {};
    for (int64_t slot = 0; slot < count; slot += kSlotsAtOnce) {
      const T *value[kSlotsAtOnce];
      for (int64_t s = 0; s < kSlotsAtOnce; ++s) // the last one again behind it; its sum is not used
        value[s] = values + (piece.slot + first + smaller(slot + s, count - 1)) * a.kv.padded;
      slot_sums<kRows>(value, queries, a.kv.value_dim, slot, sums);
    }
    float scales[16] = {};
    for (int64_t slot = 0; slot < count && sizeof(T) == 1; ++slot)
      scales[slot] = half_scalar(a.kv.value_scales + piece.slot + first + slot);
    for (int r = 0; r < kRows; ++r) {
      float *to = scores + r * kSpan + first;
      Floats products = across(sums[r], 16, Sum{});
      if constexpr (sizeof(T) == 1)
        products = mul(products, load(scales));
      store_some(to, add(load_some(to, count), products), count);
    }
  }
}

// The same for all rows of a tile. Scores of positions after a row's own may be left out.
template <typename T> inline void add_latent_scores(const AttentionTile &a, const T *values, const Piece &piece) {
  in_sets(a.rows, [&](auto rows, int64_t row) {
    add_latent_scores<rows.kCount>(a, values, until(piece, a.position[row + rows.kCount - 1]), row);
  });
}
