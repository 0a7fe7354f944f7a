// Attention in double, for the tests of the ops that write keys and values and attend to them.
#pragma once

#include "op_test.hpp"

namespace dsedge::test {

// The numbers of a head, its first pairs rotated by (0.8, 0.6).
inline std::vector<double> rotated(const float *head, int64_t dim, int64_t pairs) {
  std::vector<double> numbers(head, head + dim);
  for (size_t pair = 0; pair < static_cast<size_t>(pairs); ++pair) {
    const double a = numbers[pair], b = numbers[pair + static_cast<size_t>(pairs)];
    numbers[pair] = a * 0.8f - b * 0.6f;
    numbers[pair + static_cast<size_t>(pairs)] = b * 0.8f + a * 0.6f;
  }
  return numbers;
}

// The mean of value(position), by the softmax of score(position), over positions 0 … last.
template <typename Score, typename Value>
std::vector<double> attended(int64_t last, int64_t dim, const Score &score, const Value &value) {
  std::vector<double> mix(static_cast<size_t>(dim), 0);
  double total = 0;
  for (int64_t position = 0; position <= last; ++position) {
    const double weight = std::exp(score(position));
    total += weight;
    for (int64_t n = 0; n < dim; ++n)
      mix[static_cast<size_t>(n)] += weight * value(position)[n];
  }
  for (double &number : mix)
    number /= total;
  return mix;
}

inline double inner_product(const std::vector<double> &a, const std::vector<double> &b) {
  double sum = 0;
  for (size_t n = 0; n < a.size(); ++n)
    sum += a[n] * b[n];
  return sum;
}

} // namespace dsedge::test
