// Panels of 32 rows times activations. Every instance adds up the blocks of a row in the same order with the same
// operations, so a result does not depend on how many tokens are computed together.
#pragma once

struct Pair { // 32 rows
  Floats v[2];
};

// The codes of a panel as bytes, [blocks][2 halves][8 lines].
inline void unpack_codes(const Matrix &m, const uint8_t *panel, uint8_t *codes) {
  for (int64_t group = 0; group < m.groups; ++group, panel += m.group_bytes)
    for (int64_t run = 0; run < m.group / kBlock * 2; ++run, codes += 512)
      for (int line = 0; line < 4; ++line) {
        Bytes both = load_bytes(panel + (run * 4 + line) * 64);
        store_bytes(codes + line * 64, low_nibbles(both));
        store_bytes(codes + (line + 4) * 64, high_nibbles(both));
      }
}

// The eight lines of a run, from either form of its codes. kHeld: in registers, for several tokens.
template <bool kPacked, bool kHeld> struct Run {
  const uint8_t *at;
  Bytes held[kHeld ? 8 : 1];

  explicit Run(const uint8_t *run) : at(run) {
    if constexpr (kHeld) {
#pragma GCC unroll 8
      for (int n = 0; n < 8; ++n)
        held[n] = read(n);
    }
  }
  Bytes read(int n) const {
    if constexpr (kPacked) {
      const Bytes both = load_bytes(at + n % 4 * 64);
      return n < 4 ? low_nibbles(both) : high_nibbles(both);
    }
    return load_bytes(at + n * 64);
  }
  Bytes line(int n) const { return kHeld ? held[kHeld ? n : 0] : read(n); }
};

struct IntPair {
  Ints v[2];
};

// Adds the products of both halves' runs with 32 activations, which are spread over lanes once for the two.
template <int kBits, typename Codes> inline IntPair dot_runs(IntPair sums, const Codes (&runs)[2], const int8_t *x) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int n = i / 2 + i % 2 * 4; // both nibbles of a line together
    int32_t quad;
    __builtin_memcpy(&quad, x + n * 4, 4);
    sums.v[0] = dot<kBits>(sums.v[0], runs[0].line(n), quad);
    sums.v[1] = dot<kBits>(sums.v[1], runs[1].line(n), quad);
  }
  return sums;
}

struct GroupData { // of one group, for 16 rows
  Floats scales, offsets;
  Ints zeros;
};

// What the accumulators start from, so that they end as sums over (code - zero) * x.
template <int kBits, Kind kKind> inline IntPair start(int32_t sum, const GroupData (&data)[2]) {
  if constexpr (kKind == Kind::kZp)
    return {{mul(data[0].zeros, splat_int(-sum)), mul(data[1].zeros, splat_int(-sum))}};
  const Ints zero = splat_int(kKind != Kind::kSym ? 0 : kBits == 8 ? -kSignedZero8 * sum : -8 * sum);
  return {{zero, zero}};
}

template <Kind kKind> inline GroupData load_group(const Matrix &m, const uint8_t *group, int half) {
  GroupData d;
  d.scales = load_half((const uint16_t *)(group + m.scales_at) + half * 16);
  if constexpr (kKind == Kind::kZp)
    d.zeros = widen(group + m.extra_at + half * 16);
  if constexpr (kKind == Kind::kAffine)
    d.offsets = load_half((const uint16_t *)(group + m.extra_at) + half * 16);
  return d;
}

constexpr int64_t kAhead = 4096; // bytes: weights are fetched so long before they are needed

// Rows of a panel for tokens first … first + kCount - 1. Adding the lo part of a block that has none adds exactly 0.
// `bytes`: the panel's codes unpacked, where it is not used as it lies.
template <int kBits, Kind kKind, bool kStream, int kCount>
inline void panel_tokens(const Matrix &m, const uint8_t *panel, const uint8_t *bytes, const QuantRows &x,
                         int64_t first, float *out) {
  Pair total[kCount];
  for (int t = 0; t < kCount; ++t)
    total[t] = Pair{{splat(0), splat(0)}};
  constexpr bool kHeld = kCount > 1 && kNatives == 1; // where there are 32 registers of 16 lanes
  const int64_t each = m.group / kBlock;
  for (int64_t group = 0, block = 0; group < m.groups; ++group, panel += m.group_bytes) {
    GroupData data[2] = {load_group<kKind>(m, panel, 0), load_group<kKind>(m, panel, 1)};
    if (kStream)
      for (int64_t i = 0; i < m.group_bytes; i += 64)
        __builtin_prefetch(panel + kAhead + i);
    const uint8_t *codes = kStream || kBits == 8 ? panel : bytes + group * each * 1024;
    for (int64_t end = block + each; block < end; ++block, codes += kStream ? kBits * 128 : 1024) {
      bool precise = false;
      for (int t = 0; t < kCount; ++t)
        precise |= x.flag[(first + t) * x.blocks + block] != 0;
      using Codes = Run<kStream && kBits == 4, kHeld>;
      const Codes runs[2] = {Codes(codes), Codes(codes + (kStream ? kBits * 64 : 512))};
#pragma GCC unroll 8
      for (int t = 0; t < kCount; ++t) {
        const int64_t at = (first + t) * x.blocks + block;
        const IntPair high = dot_runs<kBits>(start<kBits, kKind>(x.sum_hi[at], data), runs, x.hi + at * kBlock);
        Pair value = {{to_float(high.v[0]), to_float(high.v[1])}};
        if (precise) [[unlikely]] {
          const IntPair low = dot_runs<kBits>(start<kBits, kKind>(x.sum_lo[at], data), runs, x.lo + at * kBlock);
          for (int half = 0; half < 2; ++half)
            value.v[half] = fma(to_float(low.v[half]), splat(1.0f / 128), value.v[half]);
        }
        for (int half = 0; half < 2; ++half) {
          Floats &sum = total[t].v[half];
          sum = fma(value.v[half], mul(data[half].scales, splat(x.scale[at])), sum);
          if constexpr (kKind == Kind::kAffine)
            sum = fma(data[half].offsets, splat(x.sum[at]), sum);
        }
      }
    }
  }
  for (int t = 0; t < kCount; ++t)
    for (int half = 0; half < 2; ++half)
      store(out + (first + t) * kPanel + half * 16, total[t].v[half]);
}

template <int kBits, Kind kKind>
inline void panel_kind(const Matrix &m, int64_t index, const QuantRows &x, int64_t tokens, uint8_t *scratch,
                       float *out) {
  const uint8_t *panel = m.data + index * m.panel_bytes;
  if (tokens < (kBits == 4 ? kUnpackFrom : kTokens)) {
    for (int64_t t = 0; t < tokens; ++t)
      panel_tokens<kBits, kKind, true, 1>(m, panel, scratch, x, t, out);
    return;
  }
  if (kBits == 4)
    unpack_codes(m, panel, scratch);
  int64_t t = 0;
  for (; t + kTokens <= tokens; t += kTokens)
    panel_tokens<kBits, kKind, false, kTokens>(m, panel, scratch, x, t, out);
  for (; t < tokens; ++t)
    panel_tokens<kBits, kKind, false, 1>(m, panel, scratch, x, t, out);
}

void panel(const Matrix &m, int64_t index, const QuantRows &x, int64_t tokens, uint8_t *scratch, float *out) {
  if (m.bits == 8)
    panel_kind<8, Kind::kSym>(m, index, x, tokens, scratch, out);
  else if (m.kind == Kind::kSym)
    panel_kind<4, Kind::kSym>(m, index, x, tokens, scratch, out);
  else if (m.kind == Kind::kZp)
    panel_kind<4, Kind::kZp>(m, index, x, tokens, scratch, out);
  else
    panel_kind<4, Kind::kAffine>(m, index, x, tokens, scratch, out);
}

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
