// Operations on rows of activations.
#pragma once

// Quantizes up to 16 blocks of 32 numbers: block k is at x + k · stride, and becomes block at + k · step of `q`. A block's
// bits depend on its own numbers alone. A NaN or an infinity makes the block's scale NaN, and so reaches the logits.
inline void quantize_blocks(const float *x, int64_t stride, int64_t count, float crest, const QuantRows &q, int64_t at,
                            int64_t step) {
  Floats tops[16], squared[16];
  for (int64_t k = 0; k < 16; ++k) {
    const float *block = x + (k < count ? k : 0) * stride;
    const Floats a = load(block), b = load(block + 16);
    tops[k] = max(abs(a), abs(b));
    squared[k] = fma(a, a, mul(b, b));
  }
  const Floats top = across(tops, count, Larger{}), squares = across(squared, count, Sum{});
  const Floats peak = mul(mul(top, top), splat(kBlock)), limit = mul(splat(crest * crest), squares);
  const Floats most = where_larger(peak, limit, splat(127.0f * 128), splat(127));
  float scale[16], inverse[16], precise[16], finite[16], sums[16], lows[16] = {};
  store(scale, where_larger(splat(__builtin_inff()), squares, div(top, splat(127)), splat(__builtin_nanf(""))));
  store(inverse, where_larger(top, splat(1e-30f), div(most, top), splat(0)));
  store(precise, where_larger(peak, limit, splat(1), splat(0)));
  store(finite, where_larger(splat(__builtin_inff()), squares, splat(1), splat(0)));
  for (int64_t k = 0; k < count; ++k) {
    Floats a = load(x + k * stride), b = load(x + k * stride + 16);
    if (finite[k] == 0) [[unlikely]] // such numbers have no codes; the scale is NaN
      a = b = splat(0);
    Ints first = round(mul(a, splat(inverse[k]))), second = round(mul(b, splat(inverse[k])));
    const int64_t to = at + k * step;
    q.flag[to] = precise[k] != 0;
    if (precise[k] != 0) {
      const Ints upper[2] = {upper_part(first), upper_part(second)};
      first = lower_part(first, upper[0]);
      second = lower_part(second, upper[1]);
      store_codes(q.lo + to * kBlock, first);
      store_codes(q.lo + to * kBlock + 16, second);
      lows[k] = sum(to_float(add(first, second)));
      first = upper[0];
      second = upper[1];
    }
    store_codes(q.hi + to * kBlock, first);
    store_codes(q.hi + to * kBlock + 16, second);
    squared[k] = to_float(add(first, second));
  }
  store(sums, across(squared, count, Sum{}));
  for (int64_t k = 0; k < count; ++k)
    q.block[at + k * step] = {scale[k], scale[k] * (sums[k] + lows[k] * (1.0f / 128)), -8 * (int32_t)sums[k],
                              -8 * (int32_t)lows[k]};
}

void quantize(const float *x, int64_t width, float crest, const QuantRows &q, int64_t row) {
  const int64_t whole = width / kBlock, left = width % kBlock, first = row * q.blocks;
  for (int64_t block = 0; block < whole; block += 16)
    quantize_blocks(x + block * kBlock, kBlock, smaller(16, whole - block), crest, q, first + block, 1);
  if (left) {
    float rest[kBlock] = {};
    __builtin_memcpy(rest, x + whole * kBlock, (size_t)left * 4);
    quantize_blocks(rest, 0, 1, crest, q, first + whole, 1);
  }
  for (int64_t at = first + whole + (left > 0); at < first + q.blocks; ++at) { // zeros to the end of the row
    __builtin_memset(q.hi + at * kBlock, 0, kBlock);
    q.block[at] = {};
    q.flag[at] = 0;
  }
}

void quantize_block(const float *x, int64_t rows, float crest, const QuantRows &q, int64_t block) {
  for (int64_t row = 0; row < rows; row += 16)
    quantize_blocks(x + row * kBlock, kBlock, smaller(16, rows - row), crest, q, row * q.blocks + block, q.blocks);
}

void norm(const float *x, const float *weight, int64_t heads, int64_t dim, float eps, float *out) {
  for (int64_t head = 0; head < heads; ++head, x += dim, out += dim) {
    Floats squares = splat(0);
    for (int64_t i = 0; i < dim; i += 16) {
      Floats a = load_some(x + i, dim - i);
      squares = fma(a, a, squares);
    }
    const Floats inverse = splat(1.0f / __builtin_sqrtf(sum(squares) / (float)dim + eps));
    for (int64_t i = 0; i < dim; i += 16)
      store_some(out + i, mul(mul(load_some(x + i, dim - i), inverse), load_some(weight + i, dim - i)), dim - i);
  }
}

// 0: silu, x / (1 + e^-x). 1: the tanh approximation of GELU (arXiv:1606.08415). Both times `up`.
void gate(const float *x, const float *up, int64_t count, int32_t activation, float *out) {
  for (int64_t i = 0; i < count; i += 16) {
    Floats a = load_some(x + i, count - i), r;
    if (activation == 0) {
      r = div(a, add(splat(1), exp(sub(splat(0), a))));
    } else {
      Floats inner = mul(splat(0.7978845608f), fma(mul(splat(0.044715f), mul(a, a)), a, a));
      r = mul(mul(splat(0.5f), a), add(splat(1), tanh(inner)));
    }
    store_some(out + i, mul(r, load_some(up + i, count - i)), count - i);
  }
}

void softcap(const float *x, int64_t count, float cap, float *out) {
  for (int64_t i = 0; i < count; i += 16)
    store_some(out + i, mul(splat(cap), tanh(div(load_some(x + i, count - i), splat(cap)))), count - i);
}

void rope(float *x, int64_t heads, int64_t dim, int64_t rotary, const float *cos, const float *sin) {
  const int64_t half = rotary / 2;
  for (int64_t head = 0; head < heads; ++head, x += dim)
    for (int64_t i = 0; i < half; i += 16) {
      const int64_t left = half - i;
      Floats a = load_some(x + i, left), b = load_some(x + half + i, left);
      Floats c = load_some(cos + i, left), s = load_some(sin + i, left);
      store_some(x + i, sub(mul(a, c), mul(b, s)), left);
      store_some(x + half + i, add(mul(b, c), mul(a, s)), left);
    }
}
