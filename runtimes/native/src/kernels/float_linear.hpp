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

template <int kCount>
inline void float_tokens(const float *weights, int64_t columns, const float *x, int64_t stride, float *out) {
  Floats32 total[kCount];
  for (int t = 0; t < kCount; ++t)
    total[t] = Floats32{{splat(0), splat(0)}};
  for (int64_t column = 0; column < columns; ++column) {
    Floats a = load(weights + column * kPanel), b = load(weights + column * kPanel + 16);
    for (int t = 0; t < kCount; ++t) {
      Floats value = splat(x[t * stride + column]);
      total[t].v[0] = fma(value, a, total[t].v[0]);
      total[t].v[1] = fma(value, b, total[t].v[1]);
    }
  }
  for (int t = 0; t < kCount; ++t) {
    store(out + t * kPanel, total[t].v[0]);
    store(out + t * kPanel + 16, total[t].v[1]);
  }
}

template <typename F>
inline void panel_float(const Run &run, int64_t index, const float *x, int64_t stride, int64_t tokens, float *scratch,
                 float *out) {
  unpack_floats<F>(run, run.data + index * run.stride, scratch);
  int64_t t = 0;
  for (; t + kTokens <= tokens; t += kTokens)
    float_tokens<kTokens>(scratch, run.columns, x + t * stride, stride, out + t * kPanel);
  for (; t < tokens; ++t)
    float_tokens<1>(scratch, run.columns, x + t * stride, stride, out + t * kPanel);
}
