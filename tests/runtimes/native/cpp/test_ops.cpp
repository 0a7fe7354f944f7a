// The test of each op, ops/<name>.cpp. An instruction without one is an error of the linker.
#include "expect.hpp"

namespace dsedge::test {
#define RECORD(Name, kind)
#define INSTRUCTION(Name, kind) void test_##kind(const char *kernels);
#define FIELD(Type, name)
#define END(Name)
#include "../program.def"
#undef INSTRUCTION
} // namespace dsedge::test

int main() {
  for (const char *kernels : dsedge::test::usable_sets()) {
    std::printf("%s ", kernels);
#define INSTRUCTION(Name, kind) dsedge::test::test_##kind(kernels);
#include "../program.def"
#undef INSTRUCTION
  }
  std::puts("all passed");
  return 0;
}
