// Operations on one row of activations.
#pragma once

// Writes the codes of up to 32 numbers. A NaN or infinity makes the block's scale NaN, and so reaches the logits.
void quantize_block(const float *x, int64_t count, float crest, const QuantRows &q, int64_t row, int64_t block) {
  Floats a = load_some(x, count), b = load_some(x + (count > 16 ? 16 : 0), count > 16 ? count - 16 : 0);
  const float largest = maximum(max(abs(a), abs(b)));
  const float squares = sum(fma(a, a, mul(b, b)));
  const int64_t at = row * q.blocks + block;
  const bool finite = squares < __builtin_inff();
  if (!finite) // their codes would be no numbers: the scale says it
    a = b = splat(0);
  const bool precise = largest * largest * kBlock > crest * crest * squares;
  const float top = precise ? 127.0f * 128 : 127.0f;
  const float inverse = largest > 1e-30f ? top / largest : 0.0f;
  int32_t codes[kBlock];
  const Ints first = round(mul(a, splat(inverse))), second = round(mul(b, splat(inverse)));
  __builtin_memcpy(codes, &first, 64);
  __builtin_memcpy(codes + 16, &second, 64);
  int32_t sum_hi = 0, sum_lo = 0;
  int8_t *hi = q.hi + at * kBlock, *lo = q.lo + at * kBlock;
  if (precise) [[unlikely]]
    for (int i = 0; i < kBlock; ++i) {
      const int32_t upper = (codes[i] + 64) >> 7, lower = codes[i] - (upper << 7);
      lo[i] = (int8_t)lower;
      sum_lo += lower;
      codes[i] = upper;
    }
  for (int i = 0; i < kBlock; ++i) {
    hi[i] = (int8_t)codes[i];
    sum_hi += codes[i];
  }
  const float scale = finite ? largest / 127.0f : __builtin_nanf("");
  q.block[at] = {scale, scale * ((float)sum_hi + (float)sum_lo / 128), -8 * sum_hi, -8 * sum_lo};
  q.flag[at] = precise;
}

void quantize(const float *x, int64_t width, float crest, const QuantRows &q, int64_t row) {
  for (int64_t block = 0; block < q.blocks; ++block) {
    const int64_t left = width - block * kBlock;
    quantize_block(x + (left > 0 ? block * kBlock : 0), left < 0 ? 0 : left < kBlock ? left : kBlock, crest, q, row,
                   block);
  }
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
