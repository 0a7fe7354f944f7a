// Attention over the ring by online softmax (arXiv:2112.05682). A row's bits depend on the row and on what it sees alone:
// positions are visited in order, in spans of 256 positions that begin at multiples of 256, and the softmax of each span is
// computed by itself and then merged. So spans may be spread over threads, and queries over tiles, in any way.
#pragma once

#include "kernels/attention_operands.hpp"

template <int kRows> struct Rows {
  static constexpr int kCount = kRows;
};

// Rows of a tile whose sums stay in registers together: for 64 numbers of values, 20 registers of AVX-512.
constexpr int kMostRows = 5;

template <int kRows, typename Work> inline void in_sets(int64_t count, int64_t row, int64_t end, const Work &work) {
  if (count == kRows)
    for (; row < end; row += kRows)
      work(Rows<kRows>{}, row);
  else if constexpr (kRows > 1)
    in_sets<kRows - 1>(count, row, end, work);
}

// Calls `work` for up to kMostRows rows at a time, in sets whose sizes differ by one at most.
template <typename Work> inline void in_sets(int64_t rows, const Work &work) {
  const int64_t sets = (rows + kMostRows - 1) / kMostRows, larger = rows % sets * (rows / sets + 1);
  in_sets<kMostRows>(rows / sets + 1, 0, larger, work);
  in_sets<kMostRows>(rows / sets, larger, rows, work);
}

// Scores of kRows queries with the slots of kLines lines of keys, each [dim][16].
template <int kRows, int kLines, typename T>
inline void score_lines(const T *keys, const float *queries, const KvHead &kv, Floats (&out)[kLines * kRows]) {
  constexpr int kSums = kLines * kRows; // sums stay in registers only in one loop that is unrolled whole
#pragma GCC unroll 20
  for (int n = 0; n < kSums; ++n)
    out[n] = splat(0);
  const int64_t stride = kv.query_stride;
  constexpr int64_t kStep = kLines * 16 * kTogether<T> * sizeof(T);                  // bytes that are read at once
  const int64_t ahead = larger(kKvAhead, kLines * 16 * kv.key_dim * (int64_t)sizeof(T)); // at least the lines that are read now
  for (int32_t d = 0; d < kv.key_dim; d += kTogether<T>) {
    decltype(load_wide(keys)) key[kLines];
#pragma GCC unroll 4
    for (int64_t i = 0; i < (kHeld<T> > 1 ? 0 : kStep); i += 64)
      __builtin_prefetch((const char *)keys + ahead + d / kTogether<T> * kStep + i);
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line)
      key[line] = load_wide(keys + (line * kv.key_dim + d) * 16 / kHeld<T>);
#pragma GCC unroll 20
    for (int n = 0; n < kSums; ++n)
      out[n] = add_product(queries + n / kLines * stride, d / kTogether<T>, key[n % kLines], out[n]);
  }
}

// Stores lanes of a line as scores of a span: lane i at index at + i, where that is within first … kSpan - 1.
inline void place(float *scores, int64_t at, const float *lanes, int64_t first) {
  for (int64_t i = 0; i < 16; ++i)
    if (at + i >= first && at + i < kSpan)
      scores[at + i] = lanes[i];
}

// Scores of kLines lines of a piece from `line` on. Their sums are independent, which hides the latency of each.
template <int kRows, int kLines, typename T>
inline void score_some(const AttentionTile &a, const T *keys, const Piece &piece, int64_t line, int64_t row) {
  constexpr int kSums = kLines * kRows;
  const int64_t begin = piece.position % kSpan, at = begin + line * 16 - piece.slot;
  float *scores = a.scores + row * kSpan;
  Floats values[kSums];
  score_lines<kRows, kLines>(keys + line * 16 * a.kv.key_dim / kHeld<T>, a.queries + row * a.kv.query_stride, a.kv, values);
#pragma GCC unroll 20
  for (int n = 0; n < kSums; ++n)
    if constexpr (sizeof(T) == 1)
      values[n] = mul(values[n], load_half(a.kv.key_scales + (line + n % kLines) * 16));
  const bool inside = at >= begin && at + kLines * 16 <= kSpan;
  float lanes[kSums * 16], *to = inside ? scores + at : lanes;
  const int64_t stride = inside ? kSpan : kLines * 16;
#pragma GCC unroll 20
  for (int n = 0; n < kSums; ++n)
    store(to + n / kLines * stride + n % kLines * 16, values[n]);
  for (int n = 0; n < kSums && !inside; ++n)
    place(scores + n / kLines * kSpan, at + n % kLines * 16, lanes + n * 16, begin);
}

// Scores of all rows with a piece. Indices behind the piece's end may be written too, with meaningless numbers, and scores
// of positions after a row's own may be left as they were: `hide` masks both.
template <int kLines, typename T>
inline int64_t score_piece(const AttentionTile &a, const T *keys, const Piece &piece, int64_t line) {
  for (const int64_t end = (piece.slot + piece.count + 15) / 16; line + kLines <= end; line += kLines)
    in_sets(a.rows, [&](auto rows, int64_t row) {
      if (piece.position + line * 16 - piece.slot <= a.position[row + rows.kCount - 1])
        score_some<rows.kCount, kLines>(a, keys, piece, line, row);
    });
  return line;
}

// mix[kRows][kLanes * 16] += weights[kRows][positions of the piece] · values[those][kLanes * 16]
template <int kRows, int kLanes, typename T>
inline void mix_piece(const T *values, int64_t stride, const float *weights, const Piece &piece, float *mix) {
  constexpr int kSums = kRows * kLanes;
  Floats sums[kSums];
#pragma GCC unroll 20
  for (int n = 0; n < kSums; ++n)
    sums[n] = load(mix + n / kLanes * stride + n % kLanes * 16);
  each_line(values, stride, piece, [&](int64_t at, const auto &line) __attribute__((always_inline)) {
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
inline void mix_rows(const AttentionTile &a, const T *values, const Piece &piece, const float *weights, float *mix) {
  const int64_t stride = a.kv.padded;
  int64_t lane = 0;
  for (; lane + kLinesAtOnce * 16 <= stride; lane += kLinesAtOnce * 16)
    mix_piece<kRows, kLinesAtOnce>(values + lane, stride, weights, piece, mix + lane);
  for (; lane < stride; lane += 16)
    mix_piece<kRows, 1>(values + lane, stride, weights, piece, mix + lane);
}

// Multiplies the weights of a piece by the scales of its values.
inline void scale_weights(const AttentionTile &a, const Piece &piece) {
  const uint16_t *scales = a.kv.value_scales + piece.slot;
  float *weights = a.scores + piece.position % kSpan;
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

// Sets hidden scores of a row to minus infinity and caps the others. Returns the largest of each lane.
inline Floats hide(const AttentionTile &a, int64_t span, int64_t row, int64_t limit, float *scores) {
  const int64_t base = span * kSpan;
  if (a.softcap > 0)
    for (int64_t i = 0; i < limit; i += 16) {
      const Floats s = load(scores + i);
      const Floats capped = mul(splat(a.softcap), tanh(div(mul(s, splat(a.scale)), splat(a.softcap))));
      store(scores + i, where_finite(s, capped));
    }
  // Hidden are positions before the window, except sinks, and positions after the query's.
  for (int64_t i = larger(0, a.sinks - base); i < smaller(limit, a.position[row] - a.window + 1 - base); ++i)
    scores[i] = -__builtin_inff();
  for (int64_t i = larger(0, a.position[row] + 1 - base); i < limit; ++i)
    scores[i] = -__builtin_inff();
  Floats top = splat(-__builtin_inff());
  for (int64_t i = 0; i < limit; i += 16)
    top = max(load(scores + i), top);
  return top;
}

// Turns the scores of all rows into weights 2^(score - maximum), in the form that products with T's values take; hidden
// positions get 0. All indices from `limit` on are hidden.
template <typename T>
inline void weigh(const AttentionTile &a, const T *values, int64_t span, int64_t limit, const Softmax &local) {
  const float scale = kLog2e * (a.softcap > 0 ? 1.0f : a.scale);
  Floats each[16] = {};
  float maxima[16], totals[16];
  for (int64_t row = 0; row < a.rows; ++row)
    each[row] = hide(a, span, row, limit, a.scores + row * kSpan);
  store(maxima, across(each, a.rows, Larger{}));
  for (int64_t row = 0; row < a.rows; ++row) {
    float *scores = a.scores + row * kSpan, &largest = maxima[row];
    if (!(largest > -__builtin_inff())) // nothing is visible, or there are NaN, which `max` drops
      for (int64_t i = 0; i < limit; ++i)
        largest = scores[i] != scores[i] ? scores[i] : largest;
    local.maximum[row] = largest * scale;
    Floats total = splat(0);
    const float top = largest > -__builtin_inff() || largest != largest ? largest : 0; // -∞ - -∞ would be NaN
    // The maximum is subtracted before scaling: exponents are then at most 0, whatever the size of scores.
    const auto weight = [&](int64_t i) { return exp2(mul(sub(load(scores + i), splat(top)), splat(scale))); };
    for (int64_t i = 0; i < limit; i += 32) {
      const Floats first = weight(i), second = i + 16 < limit ? weight(i + 16) : splat(0);
      total = add(add(total, first), second);
      store_weights(values, scores, i, first, second);
    }
    each[row] = total;
  }
  store(totals, across(each, a.rows, Sum{}));
  __builtin_memcpy(local.total, totals, (size_t)a.rows * 4);
}

void merge(const Softmax &partial, const Softmax &state, int64_t rows, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    const float old = state.maximum[r], now = partial.maximum[r];
    if (now == -__builtin_inff())
      continue; // nothing of the span is visible
    const float top = now > old ? now : old;
    float factors[16] = {old - top, now - top};
    store(factors, exp2(load(factors)));
    state.maximum[r] = top;
    state.total[r] = state.total[r] * factors[0] + partial.total[r] * factors[1];
    for (int64_t i = 0; i < padded; i += 16) {
      float *mix = state.mix + r * padded + i;
      store(mix, fma(load(partial.mix + r * padded + i), splat(factors[1]), mul(load(mix), splat(factors[0]))));
    }
  }
}

// A piece without the positions after `position`: attention is causal.
inline Piece until(Piece piece, int64_t position) {
  piece.count = larger(0, smaller(piece.count, position + 1 - piece.position));
  return piece;
}

#include "kernels/latent_scores.hpp"

// Calls `work(first, end)` for the indices of a span below `limit` that no piece holds.
template <typename Work>
inline void each_gap(const Piece *pieces, int64_t count, int64_t limit, const Work &work) {
  int64_t at = 0;
  for (int64_t p = 0; p < count; ++p) {
    work(at, smaller(limit, pieces[p].position % kSpan));
    at = pieces[p].position % kSpan + pieces[p].count;
  }
  work(at, limit);
}

// Scores of at most kRowsAtOnce rows with the pieces of a span; `count` is then of those that any row sees. Returns the
// index from which on all positions of the span are hidden.
template <typename T> inline int64_t score_rows(const AttentionTile &a, const Piece *pieces, int64_t &count) {
  const T *keys = (const T *)a.kv.keys, *values = (const T *)a.kv.values;
  while (count > 1 && pieces[count - 1].position > a.position[a.rows - 1])
    --count; // positions after the last row's are seen by none
  const Piece last = until(pieces[count - 1], a.position[a.rows - 1]);
  const int64_t limit = (last.position % kSpan + last.count + 15) / 16 * 16;
  for (int64_t p = 0; p < count; ++p) {
    const Piece piece = until(pieces[p], a.position[a.rows - 1]);
    const int64_t line = score_piece<kLinesAtOnce>(a, keys, piece, piece.slot / 16);
    score_piece<1>(a, keys, piece, line);
    if constexpr (!std::is_same_v<typename Ready<T>::Type, ReadyPair>)
      if (a.latent_queries)
        add_latent_scores(a, values, piece);
  }
  each_gap(pieces, count, limit, [&](int64_t first, int64_t end) {
    for (int64_t row = 0; row < a.rows; ++row)
      for (int64_t i = first; i < end; ++i)
        a.scores[row * kSpan + i] = -__builtin_inff();
  });
  return limit;
}

// At most kRowsAtOnce rows with the pieces of a span.
template <typename T>
inline void attend_rows(const AttentionTile &a, const Piece *pieces, int64_t count, const Softmax &local) {
  const T *values = (const T *)a.kv.values;
  const int64_t padded = a.kv.padded, span = pieces[0].position / kSpan;
  const int64_t limit = score_rows<T>(a, pieces, count);
  weigh(a, values, span, limit, local);
  if constexpr (sizeof(T) == 1)
    for (int64_t p = 0; p < count; ++p)
      scale_weights(a, until(pieces[p], a.position[a.rows - 1]));
  in_sets(a.rows, [&](auto rows, int64_t row) {
    float *mix = local.mix + row * padded;
    for (int64_t i = 0; i < rows.kCount * padded; i += 16)
      store(mix + i, splat(0));
    for (int64_t p = 0; p < count; ++p)
      mix_rows<rows.kCount>(a, values, until(pieces[p], a.position[row + rows.kCount - 1]), a.scores + row * kSpan, mix);
  });
}

inline Softmax from_row(const Softmax &s, int64_t row, int64_t padded) {
  return {s.maximum + row, s.total + row, s.mix + row * padded};
}

// Goes on to the rows behind those of a tile.
inline void pass(AttentionTile &a) {
  a.position += a.rows;
  a.latent_queries += a.latent_queries ? a.rows * a.kv.value_dim : 0;
  a.queries += a.rows * a.kv.query_stride;
}

// All rows of a tile with the pieces of a span.
template <typename T>
inline void attend_span(AttentionTile a, const Piece *pieces, int64_t count, const Softmax &local) {
  using To = typename Ready<T>::Type;
  if constexpr (!std::is_same_v<T, To>)
    if (a.rows > kMostRows && lines_agree(pieces, count)) { // one set of rows alone would convert as it goes
      To *keys = (To *)a.converted, *values = keys + kSpan * a.kv.key_dim / kHeld<To>;
      Piece found[kSpan / 16];
      for (int64_t p = 0; p < count; ++p) {
        convert<T>(a.kv, pieces[p], keys, values);
        found[p] = {pieces[p].position, pieces[p].position % kSpan, pieces[p].count};
      }
      a.kv.keys = keys;
      a.kv.values = values;
      return attend_span<To>(a, found, count, local);
    }
  const int64_t rows = a.rows, padded = a.kv.padded;
  int64_t sets = (rows + kRowsAtOnce - 1) / kRowsAtOnce; // of about equal size: a row alone takes as long as several
  for (int64_t row = 0; row < rows; row += a.rows) {
    a.rows = (int32_t)((rows - row + sets - 1) / sets);
    --sets;
    attend_rows<T>(a, pieces, count, from_row(local, row, padded));
    pass(a);
  }
}

template <typename T>
inline void attend_spans(AttentionTile a, Softmax partial, int64_t stride, const Softmax &state) {
  if constexpr (std::is_same_v<T, Paired>)
    pair_queries((const T *)a.kv.keys, a);
  bool first = true; // the first span needs no merge: it is written to `state`
  for (int64_t p = 0; p < a.piece_count;) {
    const int64_t span = a.pieces[p].position / kSpan;
    int64_t end = p;
    while (end < a.piece_count && a.pieces[end].position / kSpan == span)
      ++end;
    if (span >= a.first_span && span <= a.last_span) {
      const bool direct = first && !stride;
      attend_span<T>(a, a.pieces + p, end - p, direct ? state : partial);
      if (stride)
        partial = {partial.maximum + stride, partial.total + stride, partial.mix + stride};
      else if (!direct)
        merge(partial, state, a.rows, a.kv.padded);
      first = false;
    }
    p = end;
  }
}

// What the rows of a tile pay to the pieces of a span: out [token][the pieces' positions].
template <typename T>
inline void tell_span(AttentionTile a, const Piece *pieces, int64_t count, const Softmax &state, int64_t group, float *out,
                      int64_t stride) {
  const int64_t rows = a.rows, span = pieces[0].position / kSpan;
  const float scale = kLog2e * (a.softcap > 0 ? 1.0f : a.scale);
  for (int64_t first = 0; first < rows; first += a.rows) {
    a.rows = (int32_t)smaller(kRowsAtOnce, rows - first);
    int64_t seen = count;
    const int64_t limit = score_rows<T>(a, pieces, seen);
    for (int64_t row = 0; row < a.rows; ++row) {
      float *weights = a.scores + row * kSpan, *to = out + (first + row) / group * stride;
      hide(a, span, row, limit, weights);
      const Floats top = splat(state.maximum[first + row]), total = splat(state.total[first + row]);
      for (int64_t i = 0; i < limit; i += 16)
        store(weights + i, div(exp2(sub(mul(load(weights + i), splat(scale)), top)), total));
      for (int64_t p = 0; p < seen; to += pieces[p++].count)
        for (int64_t i = 0; i < until(pieces[p], a.position[row]).count; ++i)
          to[i] += weights[pieces[p].position % kSpan + i];
    }
    pass(a);
  }
}

template <typename T>
inline void tell_spans(AttentionTile a, const Softmax &state, int64_t group, float *out, int64_t stride) {
  if constexpr (std::is_same_v<T, Paired>)
    pair_queries((const T *)a.kv.keys, a);
  for (int64_t p = 0; p < a.piece_count && a.pieces[p].position / kSpan <= a.last_span;) {
    int64_t end = p, positions = 0;
    for (; end < a.piece_count && a.pieces[end].position / kSpan == a.pieces[p].position / kSpan; ++end)
      positions += a.pieces[end].count;
    tell_span<T>(a, a.pieces + p, end - p, state, group, out, stride);
    out += positions;
    p = end;
  }
}

// Calls `work` with a null pointer to the type by which a tile's keys and values are read.
template <typename Work> inline void as_kept(const AttentionTile &a, const Work &work) {
  if (a.kv.format == KvFormat::kFloat32)
    return work((const float *)nullptr);
  if (a.kv.format == KvFormat::kInt8)
    return work((const uint8_t *)nullptr);
  if constexpr (kPairDots)
    if (a.kv.key_dim % 2 == 0 && !a.latent_queries)
      return work((const Paired *)nullptr);
  work((const uint16_t *)nullptr);
}
template <typename T> using Pointee = std::remove_const_t<std::remove_pointer_t<T>>;

void attend(const AttentionTile &a, Softmax partial, int64_t stride, const Softmax &state) {
  as_kept(a, [&](auto kept) { attend_spans<Pointee<decltype(kept)>>(a, partial, stride, state); });
}

void tell_attention(const AttentionTile &a, const Softmax &state, int64_t group, float *out, int64_t stride) {
  as_kept(a, [&](auto kept) { tell_spans<Pointee<decltype(kept)>>(a, state, group, out, stride); });
}
