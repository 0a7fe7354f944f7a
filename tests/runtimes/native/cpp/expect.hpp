// What the C++ tests have in common: says what failed and exits with 1.
#pragma once

#include "kernels/kernels.hpp"

#include <cstdio>
#include <cstdlib>

#include <string>
#include <vector>

namespace dsedge::test {

inline void expect(bool fine, const std::string &what) {
  if (fine)
    return;
  std::printf("FAILED: %s\n", what.c_str());
  std::exit(1);
}

// The kernel sets that this processor runs.
inline std::vector<const char *> usable_sets() {
  std::vector<const char *> usable;
  for (const char *name : {"portable", "avx2", "avxvnni", "avx512", "avx512bf16", "neon", "i8mm"})
    if (find_kernels(name))
      usable.push_back(name);
  return usable;
}

} // namespace dsedge::test
