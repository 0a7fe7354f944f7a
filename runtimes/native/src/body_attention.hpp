// Attention over the ring by online softmax (arXiv:2112.05682). Positions are visited in order, a span of 256 aligned
// positions at a time: a span's softmax is computed by itself and then merged, so that the result is the same however
// the spans are spread over threads and queries over tiles.
#pragma once

// Keys and values are fetched so many bytes before they are needed: the processor itself looks no further than its page.
constexpr int64_t kKvAhead = 4096;

template <int kRows> struct Rows {
  static constexpr int kCount = kRows;
};

// Rows that are computed together: with 64 numbers of values their sums are 20 registers of AVX-512.
constexpr int kMostRows = 5;

template <int kRows, typename Work> inline void in_groups(int64_t count, int64_t row, int64_t end, const Work &work) {
  if (count == kRows)
    for (; row < end; row += kRows)
      work(Rows<kRows>{}, row);
  else if constexpr (kRows > 1)
    in_groups<kRows - 1>(count, row, end, work);
}

// Calls `work` for up to kMostRows rows at a time, in groups as equal as possible.
template <typename Work> inline void in_groups(int64_t rows, const Work &work) {
  const int64_t groups = (rows + kMostRows - 1) / kMostRows, larger = rows % groups * (rows / groups + 1);
  in_groups<kMostRows>(rows / groups + 1, 0, larger, work);
  in_groups<kMostRows>(rows / groups, larger, rows, work);
}

// float16 numbers that are multiplied as pairs of bfloat16: see body_pairs.hpp.
struct Pairs {
  uint16_t half;
};
template <typename T> constexpr bool kIsPairs = false;
template <> constexpr bool kIsPairs<Pairs> = true;

inline Floats load_wide(const float *p) { return load(p); }
inline Floats load_wide(const uint16_t *p) { return load_half(p); }
inline Floats load_wide(const uint8_t *p) { return to_float(add(widen(p), splat_int(-128))); }
inline Floats add_product(const float *x, int64_t at, Floats line, Floats sum) { return fma(splat(x[at]), line, sum); }

// Fetches values long before they are needed. `lane`: of lanes that are read 16 by 16.
template <typename T> inline void fetch_values(const T *row, int64_t lane) {
  if (lane % 32 == 0)
    __builtin_prefetch((const char *)(row + lane) + kKvAhead);
}

// Calls `work(at, line)` for each row of values; `at` is its index in the weights, line(lane) sixteen of its numbers.
template <typename T, typename Work>
inline void each_line(const T *values, int64_t stride, int64_t first, int64_t count, const Work &work) {
  for (int64_t i = 0; i < count; ++i)
    work(first + i, [&](int64_t lane) __attribute__((always_inline)) {
      fetch_values(values + i * stride, lane);
      return load_wide(values + i * stride + lane);
    });
}

#ifdef __AVX512BF16__
#include "body_pairs.hpp"
#endif

// Scores of kRows queries with the slots of kLines lines of keys, each [dim][16].
template <int kRows, int kLines, typename T>
inline void score_lines(const T *keys, const float *queries, const HeadStore &s, Floats (&out)[kLines * kRows]) {
  constexpr int kDims = kIsPairs<T> ? 2 : 1; // that are multiplied at once
#pragma GCC unroll 16
  for (int n = 0; n < kLines * kRows; ++n)
    out[n] = splat(0);
  for (int32_t d = 0; d < s.dim; d += kDims) {
    decltype(load_wide(keys)) key[kLines];
#pragma GCC unroll 2
    for (int i = 0; i < kDims; ++i)
      __builtin_prefetch((const char *)(keys + (d + i) * kLines * 16) + kKvAhead);
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line)
      key[line] = load_wide(keys + (line * s.dim + d) * 16);
#pragma GCC unroll 20
    for (int n = 0; n < kLines * kRows; ++n)
      out[n] = add_product(queries + n / kLines * s.padded, d / kDims, key[n % kLines], out[n]);
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

// kLines: the lines from `line` on that are computed together, so that their sums do not wait for one another. Scores go
// up to index `last` - 1 of the span.
template <int kRows, int kLines, typename T>
inline void score_some(const AttentionTile &a, const T *keys, Piece piece, int64_t line, int64_t row, int64_t last,
                       float *scores) {
  const int64_t begin = piece.position % kSpan;
  const float *queries = a.queries + row * a.store.padded;
  Floats values[kLines * kRows];
  score_lines<kRows, kLines>(keys + line * 16 * a.store.dim, queries, a.store, values);
#pragma GCC unroll 16
  for (int n = 0; n < kLines * kRows; ++n) {
    const int64_t at = line + n % kLines;
    if constexpr (sizeof(T) == 1)
      values[n] = mul(values[n], load_half(a.store.key_scales + at * 16));
    place(scores + (row + n / kLines) * kSpan, begin + at * 16 - piece.slot, values[n], begin, last);
  }
}

template <int kRows, typename T>
inline void score_piece(const AttentionTile &a, const T *keys, Piece piece, int64_t row, int64_t last, float *scores) {
  int64_t line = piece.slot / 16;
  const int64_t end = (piece.slot + piece.count + 15) / 16;
  for (; line + kLinesAtOnce <= end; line += kLinesAtOnce)
    score_some<kRows, kLinesAtOnce>(a, keys, piece, line, row, last, scores);
  for (; line < end; ++line)
    score_some<kRows, 1>(a, keys, piece, line, row, last, scores);
}

// mix[kRows][kLanes * 16] += weights[kRows][first … first + count - 1] · values[count][kLanes * 16]
template <int kRows, int kLanes, typename T>
inline void mix_piece(const T *values, int64_t stride, const float *weights, int64_t first, int64_t count, float *mix) {
  constexpr int kSums = kRows * kLanes; // one loop, which compilers unroll: only then do the sums stay in registers
  Floats sums[kSums];
#pragma GCC unroll 20
  for (int n = 0; n < kSums; ++n)
    sums[n] = load(mix + n / kLanes * stride + n % kLanes * 16);
  each_line(values, stride, first, count, [&](int64_t at, const auto &line) __attribute__((always_inline)) {
    decltype(line(0)) value[kLanes];
#pragma GCC unroll 4
    for (int l = 0; l < kLanes; ++l)
      value[l] = line(l * 16);
#pragma GCC unroll 20
    for (int n = 0; n < kSums; ++n)
      sums[n] = add_product(weights + n / kLanes * kSpan, at, value[n % kLanes], sums[n]);
  });
#pragma GCC unroll 20
  for (int n = 0; n < kSums; ++n)
    store(mix + n / kLanes * stride + n % kLanes * 16, sums[n]);
}

template <int kRows, typename T>
inline void mix_rows(const AttentionTile &a, const T *values, Piece piece, const float *weights, float *mix) {
  const int64_t stride = a.store.padded, first = piece.position % kSpan;
  const T *rows = values + piece.slot * stride;
  int64_t lane = 0;
  for (; lane + 64 <= stride; lane += 64)
    mix_piece<kRows, 4>(rows + lane, stride, weights, first, piece.count, mix + lane);
  for (; lane < stride; lane += 16)
    mix_piece<kRows, 1>(rows + lane, stride, weights, first, piece.count, mix + lane);
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

// Makes minus infinity of the scores of a row that are hidden, and caps the others. Returns the largest of each lane.
inline Floats hide(const AttentionTile &a, int64_t span, int64_t row, int64_t limit, float *scores) {
  const int64_t base = span * kSpan;
  if (a.softcap > 0)
    for (int64_t i = 0; i < limit; i += 16) {
      const Floats s = load(scores + i);
      const Floats capped = mul(splat(a.softcap), tanh(div(mul(s, splat(a.scale)), splat(a.softcap))));
      store(scores + i, where_finite(s, capped));
    }
  // Hidden are those before the window, but for sinks, and those after the query.
  for (int64_t i = larger(0, a.sinks - base); i < smaller(limit, a.position[row] - a.window + 1 - base); ++i)
    scores[i] = -__builtin_inff();
  for (int64_t i = larger(0, a.position[row] + 1 - base); i < limit; ++i)
    scores[i] = -__builtin_inff();
  Floats top = splat(-__builtin_inff());
  for (int64_t i = 0; i < limit; i += 16)
    top = max(load(scores + i), top);
  return top;
}

// Turns the scores of up to 16 rows into weights e^(score - maximum); hidden positions get 0. `limit`: scores from there
// on are hidden.
inline void weigh(const AttentionTile &a, int64_t span, int64_t first, int64_t limit, float *scores,
                  const Softmax &local) {
  const int64_t count = smaller(16, a.rows - first);
  const float scale = a.softcap > 0 ? 1.0f : a.scale;
  Floats each[16] = {};
  float maxima[16], totals[16];
  for (int64_t k = 0; k < count; ++k)
    each[k] = hide(a, span, first + k, limit, scores + (first + k) * kSpan);
  store(maxima, mul(across(each, count, Larger{}), splat(scale)));
  for (int64_t k = 0; k < count; ++k) {
    float *row = scores + (first + k) * kSpan, &largest = maxima[k];
    if (!(largest > -__builtin_inff())) // nothing is visible, or only NaN, which the maximum loses
      for (int64_t i = 0; i < limit; ++i)
        largest = row[i] != row[i] ? row[i] : largest;
    local.maximum[first + k] = largest;
    Floats total = splat(0);
    const float shift = largest > -__builtin_inff() || largest != largest ? -largest : 0; // -∞ less itself would be NaN
    for (int64_t i = 0; i < limit; i += 16) {
      const Floats weight = exp(fma(load(row + i), splat(scale), splat(shift)));
      store(row + i, weight);
      total = add(total, weight);
    }
    each[k] = total;
  }
  store(totals, across(each, count, Sum{}));
  for (int64_t k = 0; k < count; ++k)
    local.total[first + k] = totals[k];
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
  const Piece last = until(pieces[count - 1], a.position[a.rows - 1]); // what comes after it nobody sees
  const int64_t limit = (last.position % kSpan + last.count + 15) / 16 * 16;
  for (int64_t row = 0; row < a.rows; ++row)
    for (int64_t i = 0; i < limit; i += 16)
      store(scores + row * kSpan + i, splat(-__builtin_inff()));
  in_groups(a.rows, [&](auto rows, int64_t row) {
    for (int64_t p = 0; p < count; ++p) {
      const Piece piece = until(pieces[p], a.position[row + rows.kCount - 1]);
      // Behind the rows' own positions all is hidden, so that scores may be written there.
      const bool to_the_end = p + 1 == count && piece.position + piece.count > a.position[row + rows.kCount - 1];
      const int64_t end = to_the_end ? kSpan : piece.position % kSpan + piece.count;
      score_piece<decltype(rows)::kCount>(a, keys, piece, row, end, scores);
    }
  });
  for (int64_t row = 0; row < a.rows; row += 16)
    weigh(a, span, row, limit, scores, local);
  for (int64_t i = 0; i < a.rows * padded; i += 16)
    store(local.mix + i, splat(0));
  if constexpr (sizeof(T) == 1)
    for (int64_t p = 0; p < count; ++p)
      scale_weights(a, pieces[p], scores);
  if constexpr (kIsPairs<T>)
    pack_weights(values, a.rows, limit, scores);
  in_groups(a.rows, [&](auto rows, int64_t row) {
    for (int64_t p = 0; p < count; ++p)
      mix_rows<decltype(rows)::kCount>(a, values, until(pieces[p], a.position[row + rows.kCount - 1]),
                                       scores + row * kSpan, local.mix + row * padded);
  });
}

template <typename T>
inline void attend_spans(AttentionTile a, float *scores, Softmax part, int64_t stride, const Softmax &state) {
  if constexpr (kIsPairs<T>)
    pack_queries((const T *)a.store.keys, a);
  bool first = true; // merged with nothing it stays what it is
  for (int64_t p = 0; p < a.piece_count;) {
    const int64_t span = a.pieces[p].position / kSpan;
    int64_t end = p;
    while (end < a.piece_count && a.pieces[end].position / kSpan == span)
      ++end;
    if (span >= a.first_span && span <= a.last_span) {
      const bool direct = first && !stride;
      attend_span<T>(a, a.pieces + p, end - p, scores, direct ? state : part);
      if (stride)
        part = {part.maximum + stride, part.total + stride, part.mix + stride};
      else if (!direct)
        merge(part, state, a.rows, a.store.padded);
      first = false;
    }
    p = end;
  }
}

void attend(const AttentionTile &a, float *scores, Softmax part, int64_t stride, const Softmax &state) {
  if (a.store.format == KvFormat::kFloat32)
    return attend_spans<float>(a, scores, part, stride, state);
  if (a.store.format == KvFormat::kInt8)
    return attend_spans<uint8_t>(a, scores, part, stride, state);
  if constexpr (kPairDots)
    if (a.store.dim % 2 == 0)
      return attend_spans<Pairs>(a, scores, part, stride, state);
  attend_spans<uint16_t>(a, scores, part, stride, state);
}
