// Weights as floats: a row of an embedding; and panels of 32 rows times float activations, of weights that are floats
// themselves and for verification.
#pragma once

// The weights of a panel as floats, [columns][32].
template <typename F> inline void unpack_floats(const Run &run, const uint8_t *panel, float *out) {
  for (int64_t column = 0; column < run.columns; ++column)
    for (int half = 0; half < 2; ++half)
      store(out + column * kPanel + half * 16, F::unpack(run, panel, column, half));
}

template <typename F> void read_row(const Run &run, int64_t row, float scale, float *out) {
  const uint8_t *panel = run.data + row / kPanel * run.stride;
  const int64_t lane = row % kPanel;
  for (int64_t column = 0; column < run.columns; ++column) {
    float lanes[16];
    store(lanes, F::unpack(run, panel, column, (int)lane / 16));
    out[column] = scale * lanes[lane % 16];
  }
}

// The products of kCount tokens; `column_of(column, half)` gives 16 rows of a column.
template <int kCount, typename Column>
inline void float_tokens(const Column &column_of, int64_t columns, const float *x, int64_t stride, float *out) {
  Floats32 total[kCount];
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t)
    total[t] = Floats32{{splat(0), splat(0)}};
  for (int64_t column = 0; column < columns; ++column) {
    const Floats a = column_of(column, 0), b = column_of(column, 1);
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) {
      const Floats value = splat(x[t * stride + column]);
      total[t].v[0] = fma(value, a, total[t].v[0]);
      total[t].v[1] = fma(value, b, total[t].v[1]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    store(out + t * kPanel, total[t].v[0]);
    store(out + t * kPanel + 16, total[t].v[1]);
  }
}

// The same for up to kMost tokens.
template <int kMost, typename Column>
inline void some_float_tokens(const Column &column_of, int64_t columns, const float *x, int64_t stride, int64_t tokens,
                              float *out) {
  if constexpr (kMost > 1)
    if (tokens < kMost)
      return some_float_tokens<kMost - 1>(column_of, columns, x, stride, tokens, out);
  float_tokens<kMost>(column_of, columns, x, stride, out);
}

// More tokens than are multiplied at once share weights that have been unpacked.
template <typename F>
inline void panel_float(const Run &run, int64_t index, const float *x, int64_t stride, int64_t tokens, float *scratch,
                        float *out) {
  const uint8_t *panel = run.data + index * run.stride;
  const auto packed = [&](int64_t column, int half) { return F::unpack(run, panel, column, half); };
  if (tokens <= kFloatTokens)
    return some_float_tokens<kFloatTokens>(packed, run.columns, x, stride, tokens, out);
  unpack_floats<F>(run, panel, scratch);
  const auto unpacked = [&](int64_t column, int half) { return load(scratch + column * kPanel + half * 16); };
  for (int64_t t = 0; t < tokens; t += kFloatTokens)
    some_float_tokens<kFloatTokens>(unpacked, run.columns, x + t * stride, stride, smaller(kFloatTokens, tokens - t),
                                    out + t * kPanel);
}
