// Routing for the tests of ops on experts.
#pragma once

#include "op_test.hpp"

namespace dsedge::test {

constexpr int64_t kExpertCount = 5, kExpertsOfRow = 2;

// Two of five experts for each row, with weights of their own; the last one is chosen by few.
inline std::vector<float> expert_weights() {
  std::vector<float> weights(static_cast<size_t>(kRows * kExpertCount), 0);
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t first = row % 3, second = row % 50 == 0 ? 4 : 3;
    weights[static_cast<size_t>(row * kExpertCount + first)] = 0.25f + static_cast<float>(row) / 1000;
    weights[static_cast<size_t>(row * kExpertCount + second)] = 0.75f;
  }
  return weights;
}

} // namespace dsedge::test
