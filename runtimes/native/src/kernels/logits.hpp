// What sampling asks of a row of logits.
#pragma once

constexpr int64_t kLogitsAtOnce = 2048; // summed in float before the sum is widened: the error stays below 1e-5 of it

// The largest number; NaN where there is one.
float largest(const float *x, int64_t count) {
  Floats most = splat(-__builtin_inff()), strange = splat(0);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const Floats a = load(x + i);
    most = max(most, a);
    strange = where_number(a, strange, splat(1));
  }
  float found = maximum(most);
  bool is_number = maximum(strange) == 0;
  for (; i < count; ++i) {
    is_number = is_number && x[i] == x[i];
    found = x[i] > found ? x[i] : found;
  }
  return is_number ? found : __builtin_nanf("");
}

// The sum of e^((x - top) * inverse), of numbers up to `top`, within 1e-4 of itself.
double exponential_sum(const float *x, int64_t count, float top, float inverse) {
  double total = 0;
  for (int64_t start = 0; start < count; start += kLogitsAtOnce) {
    const int64_t stop = smaller(start + kLogitsAtOnce, count);
    Floats sums = splat(0);
    int64_t i = start;
    for (; i + 16 <= stop; i += 16)
      sums = add(sums, exp(mul(sub(load(x + i), splat(top)), splat(inverse))));
    if (i < stop) { // lanes that the row lacks are e^-88
      float rest[16];
      store(rest, splat(-__builtin_inff()));
      __builtin_memcpy(rest, x + i, (size_t)(stop - i) * 4);
      sums = add(sums, exp(mul(sub(load(rest), splat(top)), splat(inverse))));
    }
    total += sum(sums);
  }
  return total;
}

// The ids of the numbers that are at least `least`, ascending; returns how many. `ids` has room for all.
int64_t at_least(const float *x, int64_t count, float least, int32_t *ids) {
  int64_t found = 0, i = 0;
  for (; i + 64 <= count; i += 64) {
    const Floats most = max(max(load(x + i), load(x + i + 16)), max(load(x + i + 32), load(x + i + 48)));
    if (!(maximum(most) >= least))
      continue;
    for (int64_t j = i; j < i + 64; ++j)
      if (x[j] >= least)
        ids[found++] = (int32_t)j;
  }
  for (; i < count; ++i)
    if (x[i] >= least)
      ids[found++] = (int32_t)i;
  return found;
}
