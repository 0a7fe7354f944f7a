// Panels of 32 rows times float activations: of weights that are floats themselves, and for verification.
#pragma once

// The weights of a panel as floats, [columns][32].
inline void unpack_floats(const Matrix &m, const uint8_t *panel, float *out) {
  if (m.kind == Kind::kRaw) {
    for (int64_t i = 0; i < m.columns * 2; ++i)
      store(out + i * 16, m.bits == 16 ? load_half((const uint16_t *)panel + i * 16) : load((const float *)panel + i * 16));
    return;
  }
  for (int64_t column = 0; column < m.columns; ++column) {
    const uint8_t *group = panel + column / m.group * m.group_bytes;
    const int64_t line = column % kBlock / 4;
    for (int row = 0; row < kPanel; ++row) {
      const uint8_t *run = group + (column % m.group / kBlock * 2 + row / 16) * m.bits * 64;
      int code = run[line % m.bits * 64 + row % 16 * 4 + column % 4];
      code = m.bits == 8 ? code : line < 4 ? code & 15 : code >> 4;
      const float scale = half_scalar((const uint16_t *)(group + m.scales_at) + row);
      float shift = -scale * (m.bits == 8 ? 128 : 8);
      if (m.kind == Kind::kZp)
        shift = -scale * group[m.extra_at + row];
      if (m.kind == Kind::kAffine)
        shift = half_scalar((const uint16_t *)(group + m.extra_at) + row);
      out[column * kPanel + row] = scale * code + shift;
    }
  }
}

template <int kCount>
inline void float_tokens(const float *weights, int64_t columns, const float *x, int64_t stride, float *out) {
  Pair total[kCount];
  for (int t = 0; t < kCount; ++t)
    total[t] = Pair{{splat(0), splat(0)}};
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

void panel_float(const Matrix &m, int64_t index, const float *x, int64_t stride, int64_t tokens, float *scratch,
                 float *out) {
  unpack_floats(m, m.data + index * m.panel_bytes, scratch);
  int64_t t = 0;
  for (; t + kTokens <= tokens; t += kTokens)
    float_tokens<kTokens>(scratch, m.columns, x + t * stride, stride, out + t * kPanel);
  for (; t < tokens; ++t)
    float_tokens<1>(scratch, m.columns, x + t * stride, stride, out + t * kPanel);
}
