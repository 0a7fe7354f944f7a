#include "kernels.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace dsedge {

namespace {

struct Entry {
  const Kernels *kernels;
  bool usable;
};

#if defined(__x86_64__)
// CPUID leaf 7, subleaf 1, EAX bit 4: compilers know this extension later than the processors that have it.
bool avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
#elif defined(__aarch64__)
bool dot_products() {
#ifdef __linux__
  return getauxval(AT_HWCAP) >> 20 & 1; // HWCAP_ASIMDDP
#else
  return true; // every Apple silicon has them
#endif
}
#endif

} // namespace

const Kernels *find_kernels(const char *name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  const Entry entries[] = {
      {avx512_kernels(), avx512},
      {avxvnni_kernels(), avx2 && avx_vnni()},
      {avx2_kernels(), avx2},
      {portable_kernels(), true},
  };
#elif defined(__aarch64__)
  const Entry entries[] = {{neon_kernels(), dot_products()}, {portable_kernels(), true}};
#else
  const Entry entries[] = {{portable_kernels(), true}};
#endif
  for (const Entry &entry : entries)
    if (entry.usable && (!*name || std::strcmp(name, entry.kernels->name) == 0))
      return entry.kernels;
  return nullptr;
}

} // namespace dsedge
