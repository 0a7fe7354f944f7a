// Attention over the ring by online softmax (arXiv:2112.05682). Positions are visited in order, a span of 256 aligned
// positions at a time: a span's softmax is computed by itself and then merged, so that the result is the same however
// the spans are spread over threads and queries over tiles.
#pragma once

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
  for (int32_t d = 0; d < s.dim; ++d)
    for (int line = 0; line < kLines; ++line) {
      const Floats key = load_wide(keys + (line * s.dim + d) * 16);
      for (int r = 0; r < kRows; ++r)
        out[line][r] = fma(splat(queries[r * s.padded + d]), key, out[line][r]);
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
    for (int r = 0; r < kRows; ++r)
      place(scores + (row + r) * kSpan, begin + (line + n) * 16 - piece.slot, values[n][r], begin, begin + piece.count);
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
  Floats sums[kRows][kLanes];
  for (int r = 0; r < kRows; ++r)
    for (int l = 0; l < kLanes; ++l)
      sums[r][l] = load(mix + r * stride + l * 16);
  for (int64_t i = 0; i < count; ++i) {
    Floats value[kLanes];
    for (int l = 0; l < kLanes; ++l)
      value[l] = load_wide(values + i * stride + l * 16);
    for (int r = 0; r < kRows; ++r) {
      const Floats weight = splat(weights[r * kSpan + i]);
      for (int l = 0; l < kLanes; ++l)
        sums[r][l] = fma(weight, value[l], sums[r][l]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int l = 0; l < kLanes; ++l)
      store(mix + r * stride + l * 16, sums[r][l]);
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

inline bool sees(const AttentionTile &a, int64_t row, int64_t position) {
  const int64_t distance = a.position[row] - position;
  return distance >= 0 && (distance < a.window || position < a.sinks);
}

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
  if (a.position[row] - base >= a.window || a.position[row] < base + limit - 1) // else all of it is in the window
    for (int64_t i = 0; i < limit; ++i)
      scores[i] = sees(a, row, base + i) ? scores[i] : -__builtin_inff();
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
      score_piece<decltype(rows)::kCount>(a, keys, pieces[p], row, scores);
  });
  for (int64_t row = 0; row < a.rows; ++row) {
    weigh(a, span, row, limit, scores + row * kSpan, local);
    for (int64_t i = 0; i < padded; i += 16)
      store(local.mix + row * padded + i, splat(0));
  }
  in_fours(a.rows, [&](auto rows, int64_t row) {
    for (int64_t p = 0; p < count; ++p)
      mix_rows<decltype(rows)::kCount>(a, values, pieces[p], scores + row * kSpan, local.mix + row * padded);
  });
}

void attend(const AttentionTile &a, float *scores, Softmax part, int64_t stride, const Softmax &state) {
  for (int64_t p = 0; p < a.piece_count;) {
    const int64_t span = a.pieces[p].position / kSpan;
    int64_t end = p;
    while (end < a.piece_count && a.pieces[end].position / kSpan == span)
      ++end;
    if (span >= a.first_span && span <= a.last_span) {
      if (a.store.wide)
        attend_span<float>(a, a.pieces + p, end - p, scores, part);
      else
        attend_span<uint16_t>(a, a.pieces + p, end - p, scores, part);
      if (stride)
        part = {part.maximum + stride, part.total + stride, part.mix + stride};
      else
        merge(part, state, a.rows, a.store.padded);
    }
    p = end;
  }
}

template <typename T> inline void write_head(const HeadStore &s, int64_t slot, const float *key, const float *value) {
  T *keys = (T *)s.keys + slot / 16 * 16 * s.dim + slot % 16, *values = (T *)s.values + slot * s.padded;
  for (int32_t d = 0; d < s.dim; ++d) {
    store_wide(keys + d * 16, key[d]);
    store_wide(values + d, value[d]);
  }
}

void write_row(const HeadStore &s, int64_t slot, const float *key, const float *value) {
  if (s.wide)
    write_head<float>(s, slot, key, value);
  else
    write_head<uint16_t>(s, slot, key, value);
}

template <typename T>
inline void copy_head(const HeadStore &from, int64_t source, const HeadStore &to, int64_t target) {
  const T *key = (const T *)from.keys + source / 16 * 16 * from.dim + source % 16;
  T *kept = (T *)to.keys + target / 16 * 16 * to.dim + target % 16;
  for (int32_t d = 0; d < from.dim; ++d)
    kept[d * 16] = key[d * 16];
  __builtin_memcpy((T *)to.values + target * to.padded, (const T *)from.values + source * from.padded,
                   (size_t)from.padded * sizeof(T));
}

void copy_row(const HeadStore &from, int64_t source, const HeadStore &to, int64_t target) {
  if (from.wide)
    copy_head<float>(from, source, to, target);
  else
    copy_head<uint16_t>(from, source, to, target);
}
