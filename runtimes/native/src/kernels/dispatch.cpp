#include "kernels/kernels.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace dsedge {

namespace {

struct Processor {
  bool avx2, avxvnni, avx512, avx512bf16, dot, matrix;
};

#if defined(__x86_64__)

bool bits(uint32_t value, uint32_t wanted) { return (value & wanted) == wanted; }

// Read from CPUID itself: compilers learn the names of extensions late, and clang-cl's library has no list of them.
Processor processor() {
  Processor p{};
  unsigned a = 0, b = 0, c = 0, d = 0, saved = 0, high = 0;
  constexpr unsigned kFma = 1u << 12, kSaved = 1u << 27, kF16c = 1u << 29;
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !bits(c, kFma | kSaved | kF16c))
    return p;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0)); // the registers that the system saves
  if (!bits(saved, 0x6) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
    return p;
#ifdef __APPLE__
  constexpr bool kWide = true; // macOS starts to save them when they are first used
#else
  const bool kWide = bits(saved, 0xe0);
#endif
  constexpr unsigned kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31, kVnni = 1u << 11;
  p.avx2 = bits(b, 1u << 5);
  p.avx512 = p.avx2 && kWide && bits(b, kF | kDq | kBw | kVl) && bits(c, kVnni);
  if (p.avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    p.avxvnni = bits(a, 1u << 4);
    p.avx512bf16 = p.avx512 && bits(a, 1u << 5);
  }
  return p;
}

#elif defined(__aarch64__) && defined(__linux__)

Processor processor() {
  Processor p{};
  p.dot = getauxval(AT_HWCAP) >> 20 & 1;     // HWCAP_ASIMDDP
  p.matrix = getauxval(AT_HWCAP2) >> 13 & 1; // HWCAP2_I8MM
  return p;
}

#elif defined(__aarch64__) && defined(__APPLE__)

bool feature(const char *name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value;
}

Processor processor() {
  Processor p{};
  p.dot = true; // every Apple silicon has them
  p.matrix = feature("hw.optional.arm.FEAT_I8MM");
  return p;
}

#else

Processor processor() { return {}; }

#endif

struct Entry {
  const Kernels *kernels;
  bool usable;
};

} // namespace

const Kernels *find_kernels(const char *name) {
  [[maybe_unused]] static const Processor here = processor(); // a virtual machine takes tens of microseconds for CPUID
  const Entry entries[] = {
#ifdef DSEDGE_AVX512BF16
      {avx512bf16_kernels(), here.avx512bf16},
#endif
#ifdef DSEDGE_AVX512
      {avx512_kernels(), here.avx512},
#endif
#ifdef DSEDGE_AVXVNNI
      {avxvnni_kernels(), here.avxvnni},
#endif
#ifdef DSEDGE_AVX2
      {avx2_kernels(), here.avx2},
#endif
#ifdef DSEDGE_I8MM
      {i8mm_kernels(), here.matrix && here.dot},
#endif
#ifdef DSEDGE_NEON
      {neon_kernels(), here.dot},
#endif
      {portable_kernels(), true},
  };
  for (const Entry &entry : entries)
    if (entry.usable && (!*name || std::strcmp(name, entry.kernels->name) == 0))
      return entry.kernels;
  return nullptr;
}

} // namespace dsedge
