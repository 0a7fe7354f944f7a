// Panels of 32 rows times quantized activations. A result does not depend on how many tokens are computed together: every
// instance adds up the blocks of a row in the same order with the same operations.
#pragma once

struct Floats32 { // a number for each row of a panel
  Floats v[2];
};
struct Ints32 {
  Ints v[2];
};

template <int kBits> struct Bits {};

// One token takes `stream_token`: it comes without a list of flagged blocks.
static_assert(kTokens > 1 && kUnpackFrom > 1);

constexpr int64_t kAhead = 4096; // bytes: how far ahead weights are prefetched
inline void fetch_ahead(const uint8_t *group, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64)
    __builtin_prefetch(group + kAhead + i);
}

// Prefetches a share of `bytes`, by tokens first … first + count - 1 of `all`: after all tokens they are in the cache.
inline void fetch_share(const uint8_t *from, int64_t bytes, int64_t first, int64_t count, int64_t all) {
  for (int64_t i = bytes * first / all, end = bytes * (first + count) / all; i < end; i += 64)
    __builtin_prefetch(from + i, 0, 2);
}

// The codes of a panel as bytes, [blocks][2 halves][8 lines]. For matrix products each two lines are made tiles.
template <typename F> inline void unpack_codes(const Run &run, const uint8_t *panel, uint8_t *codes) {
  for (int64_t group = 0; group < run.groups; ++group, panel += run.group_bytes) {
    fetch_ahead(panel, run.group_bytes);
    for (int64_t half = 0; half < run.group / kBlock * 2; ++half, codes += 512) {
      const uint8_t *lines = panel + half * F::kBits * 64;
      for (int line = 0; line < 4 && F::kBits == 4; ++line) {
        Bytes both = load_bytes(lines + line * 64);
        store_bytes(codes + line * 64, low_nibbles(both));
        store_bytes(codes + (line + 4) * 64, high_nibbles(both));
      }
      if constexpr (kMatrixDots)
        native_tiles(Bits<F::kBits>{}, F::kBits == 4 ? codes : lines, codes);
      else if constexpr (F::kBits == 8)
        __builtin_memcpy(codes, lines, 512);
    }
  }
}

// Adds the products of a block's codes with the 32 activations of each of kCount tokens.
// kPacked: codes are as in the panel, else bytes. A line is loaded once for all tokens, and activations are broadcast once
// for both halves. A token has kChains independent sums, which hide the latency of the products.
template <int kBits, bool kPacked, int kCount, int kChains>
inline void dot_block(const uint8_t *codes, const int8_t *const (&x)[kCount], Ints32 (&sums)[kCount * kChains]) {
  constexpr int kHalf = kPacked ? kBits * 64 : 512;
  const auto line = [&](int half, int n) {
    const Bytes bytes = load_bytes(codes + half * kHalf + (kPacked && kBits == 4 ? n % 4 : n) * 64);
    return !kPacked || kBits == 8 ? bytes : n < 4 ? low_nibbles(bytes) : high_nibbles(bytes);
  };
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int n = i / 2 + i % 2 * 4; // both nibbles of a line together
    const Bytes first = line(0, n), second = line(1, n);
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) {
      int32_t quad;
      __builtin_memcpy(&quad, x[t] + n * 4, 4);
      Ints32 &sum = sums[t * kChains + i % kChains];
      sum.v[0] = dot<kBits>(sum.v[0], first, quad);
      sum.v[1] = dot<kBits>(sum.v[1], second, quad);
    }
  }
}

inline Ints32 add(const Ints32 &a, const Ints32 &b) { return {{add(a.v[0], b.v[0]), add(a.v[1], b.v[1])}}; }
inline Ints32 nothing() { return {{splat_int(0), splat_int(0)}}; }

template <typename F> inline Ints32 start(int32_t eight, const GroupData (&data)[2]) {
  return {{F::start(data[0], eight), F::start(data[1], eight)}};
}

inline Floats32 to_floats(const Ints32 &a) { return {{to_float(a.v[0]), to_float(a.v[1])}}; }

// Adds a block's products, which stand for `value`, to the sums of a token; `scale` is that of its activations.
inline void add_scaled(Floats32 &total, const Floats32 &value, const GroupData (&data)[2], float scale) {
  for (int half = 0; half < 2; ++half)
    total.v[half] = fma(value.v[half], mul(data[half].scales, splat(scale)), total.v[half]);
}

template <typename F>
inline void add_block(Floats32 &total, const Floats32 &value, const GroupData (&data)[2], const Block &x) {
  add_scaled(total, value, data, x.scale);
  for (int half = 0; half < 2 && F::kOffsets; ++half)
    total.v[half] = fma(data[half].offsets, splat(x.sum), total.v[half]);
}

// Adds a block's products for two tokens by matrix products, from tiles of codes. Sums of integers are exact in any order.
template <typename F>
inline void add_tiles(Floats32 (&total)[2], const GroupData (&data)[2], const uint8_t *tiles, const QuantRows &x,
                      int64_t at) {
  Ints32 high[2];
  for (int half = 0; half < 2; ++half)
    native_tile_dots(Bits<F::kBits>{}, tiles + half * 512, x.hi + at * kBlock, x.blocks * kBlock, high[0].v[half].v,
                     high[1].v[half].v);
  for (int t = 0; t < 2; ++t, at += x.blocks)
    add_block<F>(total[t], to_floats(add(start<F>(x.block[at].eight_hi, data), high[t])), data,
                     x.block[at]);
}

// Adds the lo parts of a block to the sums of kCount tokens.
template <typename F, bool kPacked, int kCount>
inline void add_low(Floats32 (&total)[kCount], const GroupData (&data)[2], const uint8_t *codes, const QuantRows &x,
                    const int64_t (&at)[kCount]) {
  constexpr int kChains = kCount == 1 ? 2 : 1;
  Ints32 low[kCount * kChains];
  const int8_t *lo[kCount];
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    lo[t] = x.lo + at[t] * kBlock;
    low[t * kChains] = start<F>(x.block[at[t]].eight_lo, data);
    if (kChains == 2)
      low[t * kChains + 1] = nothing();
  }
  dot_block<F::kBits, kPacked, kCount, kChains>(codes, lo, low);
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    const Ints32 sum = kChains == 1 ? low[t] : add(low[t * kChains], low[t * kChains + kChains - 1]);
    add_scaled(total[t], to_floats(sum), data, x.block[at[t]].scale * (1.0f / 128));
  }
}

// A panel's rows for one token, from codes as they lie in the panel, which is read once. The lo parts have a sum of their
// own that is added last, as in panel_tokens.
template <typename F>
inline void stream_token(const Run &run, const uint8_t *panel, const QuantRows &x, int64_t token, float *out) {
  Floats32 total = {{splat(0), splat(0)}}, low[1] = {total};
  const int8_t *hi[1] = {x.hi + token * x.blocks * kBlock};
  int64_t at[1] = {token * x.blocks};
  for (const uint8_t *group = panel, *end = panel + run.groups * run.group_bytes; group < end; group += run.group_bytes) {
    const GroupData data[2] = {F::load(run, group, 0), F::load(run, group, 1)};
    fetch_ahead(group, run.group_bytes);
    const uint8_t *codes = group;
    for (int32_t column = 0; column < run.group; column += kBlock, codes += F::kBits * 128, hi[0] += kBlock, ++at[0]) {
      Ints32 high[2] = {start<F>(x.block[at[0]].eight_hi, data), nothing()};
      dot_block<F::kBits, F::kBits == 4, 1, 2>(codes, hi, high);
      add_block<F>(total, to_floats(add(high[0], high[1])), data, x.block[at[0]]);
      if (x.flag[at[0]]) [[unlikely]]
        add_low<F, F::kBits == 4>(low, data, codes, x, at);
    }
  }
  for (int half = 0; half < 2; ++half)
    store(out + token * kPanel + half * 16, add(total.v[half], low[0].v[half]));
}

// Adds a panel's rows for tokens first … first + kCount - 1, from its codes unpacked, to the sums of their lo parts.
template <typename F, int kCount>
inline void panel_tokens(const Run &run, const uint8_t *panel, const uint8_t *codes, const QuantRows &x, int64_t first,
                         float *out) {
  Floats32 total[kCount];
  const int8_t *hi[kCount];
  const Block *block[kCount];
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    total[t] = {{splat(0), splat(0)}};
    hi[t] = x.hi + (first + t) * x.blocks * kBlock;
    block[t] = x.block + (first + t) * x.blocks;
  }
  for (const uint8_t *group = panel, *end = panel + run.groups * run.group_bytes; group < end; group += run.group_bytes) {
    const GroupData data[2] = {F::load(run, group, 0), F::load(run, group, 1)};
    for (int32_t column = 0; column < run.group; column += kBlock, codes += 1024) {
      if constexpr (kMatrixDots && kCount == 2) {
        add_tiles<F>(total, data, codes, x, block[0] - x.block);
      } else {
        Ints32 high[kCount];
#pragma GCC unroll 8
        for (int t = 0; t < kCount; ++t)
          high[t] = start<F>(block[t]->eight_hi, data);
        dot_block<F::kBits, false, kCount, 1>(codes, hi, high);
#pragma GCC unroll 8
        for (int t = 0; t < kCount; ++t)
          add_block<F>(total[t], to_floats(high[t]), data, *block[t]);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kCount; ++t) {
        hi[t] += kBlock;
        ++block[t];
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t)
    for (int half = 0; half < 2; ++half) {
      float *sums = out + (first + t) * kPanel + half * 16;
      store(sums, add(total[t].v[half], load(sums)));
    }
}

// The sums of the lo parts of kCount tokens, of a block that is flagged in them.
template <typename F, bool kPacked, int kCount>
inline void sum_low(const GroupData (&data)[2], const uint8_t *codes, const QuantRows &x, int64_t block,
                    const int32_t *tokens, float *out) {
  Floats32 total[kCount];
  int64_t at[kCount];
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    const float *sums = out + int64_t{tokens[t]} * kPanel;
    total[t] = {{load(sums), load(sums + 16)}};
    at[t] = tokens[t] * x.blocks + block;
  }
  add_low<F, kPacked>(total, data, codes, x, at);
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t)
    for (int half = 0; half < 2; ++half)
      store(out + int64_t{tokens[t]} * kPanel + half * 16, total[t].v[half]);
}

// The sums of all lo parts of a panel, block after block.
template <typename F>
inline void sum_lows(const Run &run, const uint8_t *panel, const uint8_t *unpacked, const QuantRows &x,
                     const Flagged &flagged, float *out) {
  const int64_t each = run.group / kBlock;
  for (int64_t block = 0; block < run.groups * each; ++block) {
    const int32_t *token = flagged.rows + flagged.starts[block], *end = flagged.rows + flagged.starts[block + 1];
    if (token == end)
      continue;
    const uint8_t *group = panel + block / each * run.group_bytes;
    const GroupData data[2] = {F::load(run, group, 0), F::load(run, group, 1)};
    // Tiles serve two neighbouring tokens; these are not, so 4-bit codes are read from the panel.
    constexpr bool kPacked = kMatrixDots && F::kBits == 4;
    const uint8_t *codes = kMatrixDots ? group + block % each * F::kBits * 128 : unpacked + block * 1024;
    for (; token + kTokens <= end; token += kTokens)
      sum_low<F, kPacked, kTokens>(data, codes, x, block, token, out);
    for (; token < end; ++token)
      sum_low<F, kPacked, 1>(data, codes, x, block, token, out);
  }
}

template <typename F>
inline void panel(const Run &run, int64_t index, const QuantRows &x, const Flagged &flagged, int64_t tokens,
                       uint8_t *scratch, float *out) {
  const uint8_t *panel = run.data + index * run.stride;
  int64_t t = 0;
  if (tokens >= (F::kBits == 4 ? kUnpackFrom : kTokens)) {
    unpack_codes<F>(run, panel, scratch);
    __builtin_memset(out, 0, (size_t)tokens * kPanel * 4);
    sum_lows<F>(run, panel, scratch, x, flagged, out);
    for (; t + kTokens <= tokens; t += kTokens) {
      fetch_share(panel + run.panel_bytes, run.panel_bytes, t, kTokens, tokens);
      panel_tokens<F, kTokens>(run, panel, scratch, x, t, out);
    }
  }
  for (; t < tokens; ++t)
    stream_token<F>(run, panel, x, t, out);
}
