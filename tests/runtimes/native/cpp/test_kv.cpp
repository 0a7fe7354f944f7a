// What the cache keeps: codes and scales of int8 rows, moved and copied slots, forwards over them. Run by ../sanitize.sh.
#include "decoder.hpp"
#include "expect.hpp"

#include "simd/half.hpp"

#include <cmath>
#include <cstdio>
#include <stdexcept>

using namespace dsedge;
using namespace dsedge::test;

namespace {

constexpr int32_t kKvHeads = 2, kDim = 24;
constexpr int64_t kSlots = 304, kChunk = 40, kWindow = 290;
const KvFormat kFormats[] = {KvFormat::kFloat32, KvFormat::kFloat16, KvFormat::kInt8};

// What a slot holds, read off the layout that kernels.hpp describes.
float number(const KvHead &s, bool is_value, int64_t slot, int64_t d) {
  const int64_t at = is_value ? slot * s.padded + d : slot / 16 * 16 * s.key_dim + d * 16 + slot % 16;
  const void *numbers = is_value ? s.values : s.keys;
  if (s.format == KvFormat::kFloat32)
    return static_cast<const float *>(numbers)[at];
  if (s.format == KvFormat::kFloat16)
    return half_to_float(static_cast<const uint16_t *>(numbers)[at]);
  const float scale = half_to_float((is_value ? s.value_scales : s.key_scales)[slot]);
  return scale * static_cast<float>(static_cast<const uint8_t *>(numbers)[at] - 128);
}

KvShape shape_of(KvFormat format) {
  return {{{kSlots, kWindow}}, {{0, kKvHeads, kDim, kDim, format}}};
}

// A key and a value that tell their slot.
void write(const Kernels &kernels, const KvHead &s, int64_t slot, int64_t tag) {
  float key[kDim], value[kDim];
  for (int64_t d = 0; d < kDim; ++d) {
    key[d] = static_cast<float>(tag) + static_cast<float>(d) / 16;
    value[d] = -key[d];
  }
  kernels.write_row(s, slot, key, value);
}

void test_codes(const Kernels &kernels) {
  KvPool pool(shape_of(KvFormat::kInt8), kernels);
  const KvHead s = pool.head(0, 1);
  std::mt19937 random(5);
  for (float size : {1e-7f, 1e-3f, 1.0f, 1e4f, 8e6f}) {
    float key[kDim], value[kDim];
    for (int64_t d = 0; d < kDim; ++d) {
      key[d] = size * (static_cast<float>(random() % 2001) / 1000 - 1);
      value[d] = d == 3 ? -size : key[d] / 8;
    }
    expect(kernels.write_row(s, 37, key, value), "numbers are kept");
    for (int64_t d = 0; d < kDim; ++d)
      for (bool is_value : {false, true}) {
        const float wrote = is_value ? value[d] : key[d], off = std::fabs(number(s, is_value, 37, d) - wrote);
        expect(off <= std::fmax(size / 127 * 0.501f, 4e-6f), "a code is the nearest to its number");
      }
    if (size > 1e-2f)
      expect(number(s, true, 37, 3) == -127 * half_to_float(s.value_scales[37]), "the largest gets the largest code");
  }
  float zeros[kDim] = {};
  kernels.write_row(s, 37, zeros, nullptr);
  expect(number(s, false, 37, 5) == 0 && number(s, true, 37, 3) < -7e6f, "without a value the slot's stays");
  for (float wrong : {NAN, INFINITY, -INFINITY, 9e6f}) { // 9e6 / 127 is more than float16 holds
    zeros[kDim - 1] = wrong;
    expect(!kernels.write_row(s, 36, zeros, zeros), "what cannot be kept is told");
    expect(std::isnan(number(s, false, 36, 0)) && std::isnan(number(s, true, 36, 0)), "what has no scale becomes NaN");
  }
}

void expect_row(const KvHead &s, int64_t slot, int64_t tag, const Kernels &kernels) {
  KvPool fresh(shape_of(s.format), kernels);
  const KvHead alone = fresh.head(0, 0);
  write(kernels, alone, 0, tag);
  for (int64_t d = 0; d < kDim; ++d)
    for (bool is_value : {false, true})
      expect(number(s, is_value, slot, d) == number(alone, is_value, 0, d), "a moved row is the row that was written");
}

void test_copies(KvFormat format) {
  const Kernels &kernels = *find_kernels("");
  KvPool pool(shape_of(format), kernels);
  for (int32_t head = 0; head < kKvHeads; ++head)
    for (int64_t row = 0; row < kSlots; ++row)
      write(kernels, pool.head(0, head), row, row);
  struct Copy {
    int64_t source, target, count;
  };
  std::vector<int64_t> tags(kSlots);
  for (int64_t slot = 0; slot < kSlots; ++slot)
    tags[static_cast<size_t>(slot)] = slot;
  for (const Copy &c : {Copy{0, 64, 64}, {5, 150, 37}, {200, 160, 90}, {303, 0, 1}, {17, 17, 3}, {0, 0, 0}}) {
    pool.copy(0, c.source, c.target, c.count);
    for (int64_t i = 0; i < c.count; ++i)
      tags[static_cast<size_t>(c.target + i)] = tags[static_cast<size_t>(c.source + i)];
  }
  for (int32_t head = 0; head < kKvHeads; ++head)
    for (int64_t slot = 0; slot < kSlots; ++slot)
      expect_row(pool.head(0, head), slot, tags[static_cast<size_t>(slot)], kernels);
}

std::vector<float> run(const Kernels &kernels, KvFormat format, int32_t threads, const std::vector<size_t> &sizes) {
  Sizes wanted;
  wanted.format = format;
  Engine engine(make_program(wanted), kernels, threads);
  fill(engine);
  Sequence sequence(engine, wanted);
  std::vector<float> logits;
  std::mt19937 random(3);
  for (size_t done = 0, turn = 0; done < 800; ++turn) { // once round a ring of 400 slots
    std::vector<int32_t> tokens(std::min(sizes[turn % sizes.size()], 800 - done));
    for (int32_t &token : tokens)
      token = static_cast<int32_t>(random() % kVocab);
    for (float logit : sequence.feed(tokens))
      logits.push_back(logit);
    done += tokens.size();
  }
  return logits;
}

void test_forwards(const Kernels &kernels) {
  const std::vector<float> exact = run(kernels, KvFormat::kFloat32, 1, {kChunk});
  for (KvFormat format : kFormats) {
    const std::vector<float> expected = run(kernels, format, 1, {kChunk});
    double off = 0;
    for (size_t i = 0; i < exact.size(); ++i)
      off += std::fabs(expected[i] - exact[i]) / static_cast<double>(exact.size());
    expect(off < 1 && (off > 0 || format == KvFormat::kFloat32), "a narrower cache stays close");
    for (const std::vector<size_t> &sizes : {std::vector<size_t>{1}, {7, 1, 30}}) {
      const std::vector<float> found = run(kernels, format, 3, sizes);
      expect(std::memcmp(found.data(), expected.data(), found.size() * 4) == 0, "same bits on other threads and chunks");
    }
  }
}

// A sink whose parts float16 holds, until they are turned onto each other.
void test_sinks_that_cannot_be_kept() {
  KvPool pool(shape_of(KvFormat::kFloat16), *find_kernels(""));
  const std::vector<float> key(kDim, 60'000), value(kDim, 0), half(kDim / 2, 0.70710678f);
  for (int32_t head = 0; head < kKvHeads; ++head)
    expect(find_kernels("")->write_row(pool.head(0, head), 5, key.data(), value.data()), "60,000 is a float16");
  bool told = false;
  try {
    pool.rotate(0, 5, 64, 1, half, half);
  } catch (const std::overflow_error &) {
    told = true;
  }
  expect(told, "a sink that cannot be kept is told");
}

} // namespace

int main() {
  for (const char *name : usable_sets()) {
    std::printf("%s ", name);
    test_codes(*find_kernels(name));
    test_forwards(*find_kernels(name));
  }
  for (KvFormat format : kFormats)
    test_copies(format);
  test_sinks_that_cannot_be_kept();
  std::puts("all passed");
  return 0;
}
