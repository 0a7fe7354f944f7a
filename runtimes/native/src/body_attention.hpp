// Attention over the ring by online softmax (arXiv:2112.05682). Positions are visited in order, a span of 256 aligned
// positions at a time: a span's softmax is computed by itself and then merged, so that the result is the same however
// the spans are spread over threads and queries over tiles.
#pragma once

// Keys and values are fetched so many bytes before they are needed: the processor itself looks no further than its page.
constexpr int64_t kKvAhead = 4096;

template <int kRows> struct Rows {
  static constexpr int kCount = kRows;
};

// Calls `work` for four rows at a time, and once for the one to three that are left.
template <typename Work> inline void in_fours(int64_t rows, const Work &work) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4)
    work(Rows<4>{}, row);
  if (rows - row == 3)
    work(Rows<3>{}, row);
  else if (rows - row == 2)
    work(Rows<2>{}, row);
  else if (rows - row == 1)
    work(Rows<1>{}, row);
}

inline Floats load_wide(const float *p) { return load(p); }
inline Floats load_wide(const uint16_t *p) { return load_half(p); }
inline Floats load_wide(const uint8_t *p) { return to_float(add(widen(p), splat_int(-128))); }
inline void store_wide(float *p, float x) { *p = x; }
// What float16 cannot hold becomes NaN: an infinity could turn into a weight of 0, or into the soft-cap, unnoticed.
inline void store_wide(uint16_t *p, float x) {
  const uint16_t half = half_of(x);
  *p = (half & 0x7fff) == 0x7c00 ? 0x7e00 : half;
}

// Scores of kRows queries with the slots of kLines lines of keys, each [dim][16].
template <int kRows, int kLines, typename T>
inline void score_lines(const T *keys, const float *queries, const HeadStore &s, Floats out[kLines][kRows]) {
  for (int line = 0; line < kLines; ++line)
    for (int r = 0; r < kRows; ++r)
      out[line][r] = splat(0);
  for (int32_t d = 0; d < s.dim; ++d) {
    __builtin_prefetch((const char *)(keys + d * kLines * 16) + kKvAhead);
    for (int line = 0; line < kLines; ++line) {
      const Floats key = load_wide(keys + (line * s.dim + d) * 16);
      for (int r = 0; r < kRows; ++r)
        out[line][r] = fma(splat(queries[r * s.padded + d]), key, out[line][r]);
    }
  }
}

// Puts lanes of a line into the scores of a span: lane 0 belongs to index `at`; only first … last - 1 are wanted.
inline void place(float *scores, int64_t at, Floats line, int64_t first, int64_t last) {
  if (at >= first && at + 16 <= last) {
    store(scores + at, line);
    return;
  }
  float lanes[16];
  store(lanes, line);
  for (int64_t i = 0; i < 16; ++i)
    if (at + i >= first && at + i < last)
      scores[at + i] = lanes[i];
}

// kLines: the lines from `line` on that are computed together, so that their sums do not wait for one another.
template <int kRows, int kLines, typename T>
inline void score_some(const AttentionTile &a, const T *keys, Piece piece, int64_t line, int64_t row, float *scores) {
  const int64_t begin = piece.position % kSpan;
  Floats values[kLines][kRows];
  score_lines<kRows, kLines>(keys + line * 16 * a.store.dim, a.queries + row * a.store.padded, a.store, values);
  for (int n = 0; n < kLines; ++n)
    for (int r = 0; r < kRows; ++r) {
      if constexpr (sizeof(T) == 1)
        values[n][r] = mul(values[n][r], load_half(a.store.key_scales + (line + n) * 16));
      place(scores + (row + r) * kSpan, begin + (line + n) * 16 - piece.slot, values[n][r], begin, begin + piece.count);
    }
}

template <int kRows, typename T>
inline void score_piece(const AttentionTile &a, const T *keys, Piece piece, int64_t row, float *scores) {
  int64_t line = piece.slot / 16;
  const int64_t end = (piece.slot + piece.count + 15) / 16;
  for (; line + kLinesAtOnce <= end; line += kLinesAtOnce)
    score_some<kRows, kLinesAtOnce>(a, keys, piece, line, row, scores);
  for (; line < end; ++line)
    score_some<kRows, 1>(a, keys, piece, line, row, scores);
}

// mix[kRows][kLanes * 16] += weights[kRows][piece] · values[piece][kLanes * 16]
template <int kRows, int kLanes, typename T>
inline void mix_piece(const T *values, int64_t stride, const float *weights, int64_t count, float *mix) {
  constexpr int kSums = kRows * kLanes; // one loop, which compilers unroll: only then do the sums stay in registers
  Floats sums[kSums];
#pragma GCC unroll 16
  for (int n = 0; n < kSums; ++n)
    sums[n] = load(mix + n / kLanes * stride + n % kLanes * 16);
  for (int64_t i = 0; i < count; ++i) {
    Floats value[kLanes];
#pragma GCC unroll 4
    for (int l = 0; l < kLanes; ++l) {
      if (l % 2 == 0)
        __builtin_prefetch((const char *)(values + i * stride + l * 16) + kKvAhead);
      value[l] = load_wide(values + i * stride + l * 16);
    }
#pragma GCC unroll 16
    for (int n = 0; n < kSums; ++n)
      sums[n] = fma(splat(weights[n / kLanes * kSpan + i]), value[n % kLanes], sums[n]);
  }
#pragma GCC unroll 16
  for (int n = 0; n < kSums; ++n)
    store(mix + n / kLanes * stride + n % kLanes * 16, sums[n]);
}

template <int kRows, typename T>
inline void mix_rows(const AttentionTile &a, const T *values, Piece piece, const float *scores, float *mix) {
  const int64_t stride = a.store.padded;
  const T *rows = values + piece.slot * stride;
  const float *weights = scores + piece.position % kSpan;
  int64_t lane = 0;
  for (; lane + 64 <= stride; lane += 64)
    mix_piece<kRows, 4>(rows + lane, stride, weights, piece.count, mix + lane);
  for (; lane < stride; lane += 16)
    mix_piece<kRows, 1>(rows + lane, stride, weights, piece.count, mix + lane);
}

// Multiplies the weights of a piece by the scales of its values.
inline void scale_weights(const AttentionTile &a, Piece piece, float *scores) {
  const uint16_t *scales = a.store.value_scales + piece.slot;
  float *weights = scores + piece.position % kSpan;
  int64_t i = 0;
  for (; i + 16 <= piece.count; i += 16) {
    const Floats scale = load_half(scales + i);
    for (int64_t row = 0; row < a.rows; ++row)
      store(weights + row * kSpan + i, mul(load(weights + row * kSpan + i), scale));
  }
  for (; i < piece.count; ++i)
    for (int64_t row = 0; row < a.rows; ++row)
      weights[row * kSpan + i] *= half_scalar(scales + i);
}

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Turns scores into weights e^(score - maximum); hidden positions get 0. `limit`: scores from there on are hidden.
inline void weigh(const AttentionTile &a, int64_t span, int64_t row, int64_t limit, float *scores,
                  const Softmax &local) {
  const int64_t base = span * kSpan;
  Floats top = splat(-__builtin_inff());
  if (a.softcap > 0)
    for (int64_t i = 0; i < limit; i += 16) {
      const Floats s = load(scores + i);
      const Floats capped = mul(splat(a.softcap), tanh(div(mul(s, splat(a.scale)), splat(a.softcap))));
      store(scores + i, unless_hidden(s, capped));
    }
  // Hidden are those before the window, but for sinks, and those after the query.
  for (int64_t i = larger(0, a.sinks - base); i < smaller(limit, a.position[row] - a.window + 1 - base); ++i)
    scores[i] = -__builtin_inff();
  for (int64_t i = larger(0, a.position[row] + 1 - base); i < limit; ++i)
    scores[i] = -__builtin_inff();
  for (int64_t i = 0; i < limit; i += 16)
    top = max(load(scores + i), top);
  const float scale = a.softcap > 0 ? 1.0f : a.scale;
  float largest = maximum(top) * scale;
  if (!(largest > -__builtin_inff())) // nothing is visible, or only NaN, which the maximum loses
    for (int64_t i = 0; i < limit; ++i)
      largest = scores[i] != scores[i] ? scores[i] : largest;
  local.maximum[row] = largest;
  Floats total = splat(0);
  if (largest != -__builtin_inff())
    for (int64_t i = 0; i < limit; i += 16) {
      const Floats weight = exp(fma(load(scores + i), splat(scale), splat(-largest)));
      store(scores + i, weight);
      total = add(total, weight);
    }
  local.total[row] = sum(total);
}

void merge(const Softmax &part, const Softmax &state, int64_t rows, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    const float old = state.maximum[r], now = part.maximum[r];
    if (now == -__builtin_inff())
      continue; // nothing of the span is visible
    const float top = now > old ? now : old;
    float factors[16] = {old - top, now - top};
    store(factors, exp(load(factors)));
    state.maximum[r] = top;
    state.total[r] = state.total[r] * factors[0] + part.total[r] * factors[1];
    for (int64_t i = 0; i < padded; i += 16) {
      float *mix = state.mix + r * padded + i;
      store(mix, fma(load(part.mix + r * padded + i), splat(factors[1]), mul(load(mix), splat(factors[0]))));
    }
  }
}

// What of a piece a query at `position` may see, at most: nobody looks ahead.
inline Piece until(Piece piece, int64_t position) {
  piece.count = larger(0, smaller(piece.count, position + 1 - piece.position));
  return piece;
}

template <typename T>
inline void attend_span(const AttentionTile &a, const Piece *pieces, int64_t count, float *scores,
                        const Softmax &local) {
  const T *keys = (const T *)a.store.keys, *values = (const T *)a.store.values;
  const int64_t span = pieces[0].position / kSpan, padded = a.store.padded;
  const int64_t limit = (pieces[count - 1].position % kSpan + pieces[count - 1].count + 15) / 16 * 16;
  for (int64_t row = 0; row < a.rows; ++row)
    for (int64_t i = 0; i < limit; i += 16)
      store(scores + row * kSpan + i, splat(-__builtin_inff()));
  in_fours(a.rows, [&](auto rows, int64_t row) {
    for (int64_t p = 0; p < count; ++p)
      score_piece<decltype(rows)::kCount>(a, keys, until(pieces[p], a.position[row + rows.kCount - 1]), row, scores);
  });
  for (int64_t row = 0; row < a.rows; ++row) {
    weigh(a, span, row, limit, scores + row * kSpan, local);
    for (int64_t i = 0; i < padded; i += 16)
      store(local.mix + row * padded + i, splat(0));
  }
  if constexpr (sizeof(T) == 1)
    for (int64_t p = 0; p < count; ++p)
      scale_weights(a, pieces[p], scores);
  in_fours(a.rows, [&](auto rows, int64_t row) {
    for (int64_t p = 0; p < count; ++p)
      mix_rows<decltype(rows)::kCount>(a, values, until(pieces[p], a.position[row + rows.kCount - 1]),
                                       scores + row * kSpan, local.mix + row * padded);
  });
}

void attend(const AttentionTile &a, float *scores, Softmax part, int64_t stride, const Softmax &state) {
  for (int64_t p = 0; p < a.piece_count;) {
    const int64_t span = a.pieces[p].position / kSpan;
    int64_t end = p;
    while (end < a.piece_count && a.pieces[end].position / kSpan == span)
      ++end;
    if (span >= a.first_span && span <= a.last_span) {
      if (a.store.format == KvFormat::kFloat32)
        attend_span<float>(a, a.pieces + p, end - p, scores, part);
      else if (a.store.format == KvFormat::kFloat16)
        attend_span<uint16_t>(a, a.pieces + p, end - p, scores, part);
      else
        attend_span<uint8_t>(a, a.pieces + p, end - p, scores, part);
      if (stride)
        part = {part.maximum + stride, part.total + stride, part.mix + stride};
      else
        merge(part, state, a.rows, a.store.padded);
    }
    p = end;
  }
}

// Puts numbers into the slot at `out`, one every `stride`.
template <typename T> inline void write_numbers(const float *x, int64_t count, T *out, int64_t stride) {
  for (int64_t d = 0; d < count; ++d)
    store_wide(out + d * stride, x[d]);
}

// The same as codes; returns their scale. What no scale can hold makes it NaN.
inline uint16_t write_codes(const float *x, int64_t count, uint8_t *out, int64_t stride) {
  Floats top = splat(0), total = splat(0);
  for (int64_t d = 0; d < count; d += 16) {
    const Floats a = abs(load_some(x + d, count - d));
    top = max(a, top);
    total = add(a, total); // keeps a NaN, which the maximum may lose
  }
  uint16_t half;
  store_wide(&half, maximum(top) / 127);
  if (!(sum(total) < __builtin_inff()))
    half = 0x7e00;
  const float scale = half_scalar(&half), inverse = scale > 0 ? 1 / scale : 0; // of NaN: 0
  for (int64_t d = 0; d < count; d += 16) {
    const Floats a = inverse > 0 ? mul(load_some(x + d, count - d), splat(inverse)) : splat(0);
    const Ints rounded = round(max(splat(-127), sub(splat(0), max(splat(-127), sub(splat(0), a)))));
    int32_t codes[16];
    __builtin_memcpy(codes, &rounded, sizeof codes);
    for (int64_t i = 0; i < 16 && d + i < count; ++i)
      out[(d + i) * stride] = (uint8_t)(codes[i] + 128);
  }
  return half;
}

template <typename T> inline void write_head(const HeadStore &s, int64_t slot, const float *key, const float *value) {
  T *keys = (T *)s.keys + slot / 16 * 16 * s.dim + slot % 16, *values = (T *)s.values + slot * s.padded;
  if constexpr (sizeof(T) == 1) {
    s.key_scales[slot] = write_codes(key, s.dim, keys, 16);
    if (value)
      s.value_scales[slot] = write_codes(value, s.dim, values, 1);
  } else {
    write_numbers(key, s.dim, keys, 16);
    if (value)
      write_numbers(value, s.dim, values, 1);
  }
}

void write_row(const HeadStore &s, int64_t slot, const float *key, const float *value) {
  if (s.format == KvFormat::kFloat32)
    write_head<float>(s, slot, key, value);
  else if (s.format == KvFormat::kFloat16)
    write_head<uint16_t>(s, slot, key, value);
  else
    write_head<uint8_t>(s, slot, key, value);
}
