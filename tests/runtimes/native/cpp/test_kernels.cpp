// Each kernel that works on rows or on the ring against the same sums in double, for widths with all kinds of edges.
#include "expect.hpp"

#include "formats/formats.hpp"
#include "simd/half.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

using namespace dsedge;
using namespace dsedge::test;

namespace {

constexpr int64_t kWidths[] = {1, 7, 15, 16, 17, 31, 45, 64, 100};

std::vector<float> random_floats(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float &value : values)
    value = static_cast<float>(static_cast<int32_t>(random() % 4001) - 2000) / 1000;
  return values;
}

void near(double found, double expected, double bound, const std::string &what) {
  expect(std::fabs(found - expected) <= bound * (1 + std::fabs(expected)),
         what + ": " + std::to_string(found) + " instead of " + std::to_string(expected));
}

void test_norm(const Kernels &k, int64_t width) {
  const std::vector<float> x = random_floats(3 * width, 1), weight = random_floats(width, 2);
  std::vector<float> out(x.size() + 1, 7.0f);
  k.norm(x.data(), weight.data(), 3, width, 1e-5f, out.data());
  for (int64_t head = 0; head < 3; ++head) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i)
      squares += std::pow(x[head * width + i], 2);
    for (int64_t i = 0; i < width; ++i)
      near(out[head * width + i], x[head * width + i] / std::sqrt(squares / width + 1e-5) * weight[i], 1e-5, "norm");
  }
  expect(out.back() == 7.0f, "norm writes nothing behind its row");
}

void test_rows(const Kernels &k, int64_t width) {
  const std::vector<float> x = random_floats(width, 3), up = random_floats(width, 4);
  std::vector<float> silu(x.size() + 1, 7.0f), gelu = silu, capped = silu;
  k.gate(x.data(), up.data(), width, 0, silu.data());
  k.gate(x.data(), up.data(), width, 1, gelu.data());
  k.softcap(x.data(), width, 1.5f, capped.data());
  for (int64_t i = 0; i < width; ++i) {
    const double a = x[i];
    near(silu[i], a / (1 + std::exp(-a)) * up[i], 1e-5, "silu");
    near(gelu[i], 0.5 * a * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a))) * up[i], 1e-5, "gelu");
    near(capped[i], 1.5 * std::tanh(a / 1.5), 1e-5, "softcap");
  }
  expect(silu.back() == 7.0f && gelu.back() == 7.0f && capped.back() == 7.0f, "rows end where they end");
}

void test_rope(const Kernels &k, int64_t width) {
  const int64_t dim = width + 1, pairs = dim / 2; // of an odd head the last number stays
  const std::vector<float> cos = random_floats(pairs, 5), sin = random_floats(pairs, 6), x = random_floats(2 * dim, 7);
  std::vector<float> out = x;
  k.rope(out.data(), 2, dim, pairs * 2, cos.data(), sin.data());
  for (int64_t head = 0; head < 2; ++head)
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t at = head * dim + i;
      const double a = x[at], b = x[at + pairs];
      near(out[at], a * cos[i] - b * sin[i], 1e-6, "rope");
      near(out[at + pairs], b * cos[i] + a * sin[i], 1e-6, "rope");
    }
  for (int64_t i = pairs * 2; i < dim; ++i)
    expect(out[dim + i] == x[dim + i], "rope leaves the rest of a head alone");
}

void test_quantize(const Kernels &k, int64_t width) {
  const int64_t blocks = (width + kBlock - 1) / kBlock;
  const std::vector<float> x = random_floats(width, 8);
  const size_t n = static_cast<size_t>(blocks);
  std::vector<int8_t> hi(n * kBlock), lo(n * kBlock);
  std::vector<Block> found(n);
  std::vector<uint8_t> flag(n);
  const QuantRows q{hi.data(), lo.data(), found.data(), flag.data(), blocks};
  for (float crest : {0.0f, 100.0f}) { // every block in 16 bits, and none
    k.quantize(x.data(), width, crest, q, 0);
    for (int64_t i = 0; i < blocks * kBlock; ++i) {
      const size_t at = static_cast<size_t>(i), block = at / kBlock;
      const double value = found[block].scale * (hi[at] + (flag[block] ? lo[at] / 128.0 : 0));
      near(value, i < width ? x[at] : 0.0f, found[block].scale * (crest > 0 ? 0.51 : 0.51 / 128), "quantize");
    }
  }
}

// Rounds rows of `dim` numbers to what a cache of that format keeps.
void keep(std::vector<float> &rows, int32_t dim, KvFormat format) {
  if (format == KvFormat::kFloat32)
    return;
  for (auto row = rows.begin(); row < rows.end(); row += dim) {
    float scale = 0;
    for (int32_t d = 0; d < dim; ++d)
      scale = std::max(scale, std::fabs(row[d]));
    scale = half_to_float(float_to_half(scale / 127));
    for (int32_t d = 0; d < dim; ++d)
      row[d] = format == KvFormat::kInt8 ? scale * std::nearbyint(row[d] / scale) : half_to_float(float_to_half(row[d]));
  }
}

// The nearest number with 8 bits.
float short_float(float x) {
  int exponent = 0;
  const float mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::round(mantissa * 256), exponent - 8);
}

// Attention over 60 positions from 230 on, on both sides of position 256. `offset`: by how many slots they are moved round the ring,
// so that lines of slots are lines of positions (with 48) or not. With pairs of bfloat16 all that is multiplied has 8 bits,
// weights too: a relative error of up to 2^-8 in each. Many rows come to the very numbers of each by itself. `latent`:
// products of other queries with the values are part of the scores.
void test_attention(const Kernels &k, int32_t dim, KvFormat format, float softcap, int64_t offset, bool latent) {
  constexpr int64_t kFirst = 230, kCount = 60, kSlots = 64, kWindow = 40, kRows = 20;
  const int32_t padded = (dim + 15) / 16 * 16;
  std::vector<float> keys(static_cast<size_t>(kSlots * dim), 0), values(static_cast<size_t>(kSlots * padded), 0);
  std::vector<uint16_t> scales(2 * kSlots);
  const KvHead kept{keys.data(), values.data(), scales.data(), scales.data() + kSlots, dim, dim, padded, padded, format};
  std::vector<float> key = random_floats(kCount * dim, 9), value = random_floats(kCount * dim, 10);
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t position = kFirst + i, slot = (position + offset) % kSlots;
    k.write_row(kept, slot, key.data() + i * dim, value.data() + i * dim);
    if (i == 0 || position % kSpan == 0 || slot == 0)
      pieces.push_back({position, slot, 0});
    ++pieces.back().count;
  }
  std::vector<float> some = random_floats(kRows * dim, 11);
  const std::vector<float> latent_queries = latent ? random_floats(kRows * dim, 12) : std::vector<float>();
  const bool pairs = !latent && std::string(k.name) == "avx512bf16" && format == KvFormat::kFloat16 && dim % 2 == 0;
  for (std::vector<float> *kept : {&key, &value})
    keep(*kept, dim, format);
  std::vector<int64_t> positions;
  for (int64_t row = 0; row < kRows; ++row)
    positions.push_back(kFirst + row * (kCount - 1) / (kRows - 1));
  std::vector<float> queries(static_cast<size_t>(kRows * padded), 0), scores(kRowsAtOnce * kSpan);
  std::vector<float> converted(static_cast<size_t>(2 * kSpan * padded));
  for (int64_t row = 0; row < kRows; ++row)
    std::copy_n(some.data() + row * dim, dim, queries.data() + row * padded);
  // The state of `rows` rows from `first` on, which then are what the queries are no longer.
  const auto attend = [&](int64_t first, int64_t rows) {
    std::vector<float> part(static_cast<size_t>(rows * (2 + padded)), 0), state = part, some_queries = queries;
    std::fill_n(state.data(), rows, -INFINITY);
    const auto softmax = [&](std::vector<float> &s) { return Softmax{s.data(), s.data() + rows, s.data() + 2 * rows}; };
    const AttentionTile tile{kept, pieces.data(), static_cast<int64_t>(pieces.size()), 0, 1, positions.data() + first,
                             some_queries.data() + first * padded, scores.data(), converted.data(),
                             static_cast<int32_t>(rows), kWindow, 0, 0.3f, softcap,
                             latent ? latent_queries.data() + first * dim : nullptr};
    k.attend(tile, softmax(part), 0, softmax(state));
    return state;
  };
  const std::vector<float> state = attend(0, kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<float> alone = attend(row, 1);
    expect(alone[0] == state[row] && alone[1] == state[kRows + row], "a row's softmax does not depend on other rows");
    expect(std::equal(alone.begin() + 2, alone.end(), state.begin() + 2 * kRows + row * padded),
           "a row's mix does not depend on other rows");
  }
  if (pairs)
    for (std::vector<float> *operand : {&some, &key, &value})
      std::transform(operand->begin(), operand->end(), operand->begin(), short_float);
  for (int64_t row = 0; row < kRows; ++row) {
    double total = 0;
    std::vector<double> mix(static_cast<size_t>(dim));
    for (int64_t i = 0; i < kCount; ++i) {
      const int64_t distance = positions[row] - kFirst - i;
      if (distance < 0 || distance >= kWindow)
        continue;
      double score = 0;
      for (int32_t d = 0; d < dim; ++d)
        score += double{some[row * dim + d]} * key[i * dim + d] +
                 (latent ? double{latent_queries[row * dim + d]} * value[i * dim + d] : 0);
      score *= 0.3f;
      const double weight = std::exp(softcap > 0 ? softcap * std::tanh(score / softcap) : score);
      total += weight;
      for (int32_t d = 0; d < dim; ++d)
        mix[d] += weight * value[i * dim + d];
    }
    for (int32_t d = 0; d < dim; ++d)
      near(state[2 * kRows + row * padded + d] / state[kRows + row], mix[d] / total, pairs ? 0x1p-8 : 2e-5, "attention");
  }
}

// Positions that nobody holds, in a span before the query's: what lies behind the last slot of such a piece is not seen.
void test_gap(const Kernels &k, KvFormat format) {
  constexpr int32_t kDim = 16;
  std::vector<float> keys(32 * kDim, 0), values(32 * kDim, 0), query(kDim, 0), scores(kSpan);
  std::vector<uint16_t> scales(64);
  const KvHead kept{keys.data(), values.data(), scales.data(), scales.data() + 32, kDim, kDim, kDim, kDim, format};
  const std::vector<float> ones(kDim, 1.0f);
  for (int64_t slot = 0; slot < 32; ++slot)
    k.write_row(kept, slot, ones.data(), ones.data());
  const Piece pieces[] = {{0, 0, 4}, {256, 16, 4}};
  const int64_t position = 259;
  float part[2 + kDim] = {}, state[2 + kDim] = {-INFINITY};
  const AttentionTile tile{kept, pieces, 2, 0, 1, &position, query.data(), scores.data(), nullptr, 1, 1000, 0, 1.0f, 0.0f, nullptr};
  k.attend(tile, {part, part + 1, part + 2}, 0, {state, state + 1, state + 2});
  expect(state[1] == 8 && std::fabs(state[2] - 8) < 0.05f, "of 260 positions eight are held, and each counts once");
}

void test_logits(const Kernels &k, int64_t width) {
  std::vector<float> x = random_floats(width, 5);
  const float top = *std::max_element(x.begin(), x.end());
  expect(k.largest(x.data(), width) == top, "the largest");
  for (double temperature : {0.05, 1.0, 30.0}) {
    double sum = 0;
    for (float value : x)
      sum += std::exp((static_cast<double>(value) - top) / temperature);
    near(k.exponential_sum(x.data(), width, top, static_cast<float>(1 / temperature)), sum, 1e-5, "sum of exponentials");
  }
  for (float least : {-3.0f, 0.0f, top, top + 1}) {
    std::vector<int32_t> expected, found(x.size() + 1, -7);
    for (int64_t i = 0; i < width; ++i)
      if (x[static_cast<size_t>(i)] >= least)
        expected.push_back(static_cast<int32_t>(i));
    const int64_t count = k.at_least(x.data(), width, least, found.data());
    expect(found.back() == -7, "ids end where they end");
    found.resize(static_cast<size_t>(count));
    expect(found == expected, "ids of at least");
  }
  for (float strange : {std::nanf(""), -std::nanf("")})
    for (size_t at = 0; at < x.size(); ++at) {
      std::vector<float> y = x;
      y[at] = strange;
      expect(std::isnan(k.largest(y.data(), width)), "a NaN anywhere is told");
    }
  const std::vector<float> none(x.size(), -INFINITY);
  expect(k.largest(none.data(), width) == -INFINITY, "nothing but minus infinity");
}

// A matrix of random codes or numbers, packed, and the weights that they stand for by the payload's layout, [rows][columns].
struct Packed {
  static constexpr int64_t kRows = 45, kColumns = 200;
  Matrix matrix;
  std::vector<uint8_t> memory;
  std::vector<double> weights;

  Packed(const char *name, int32_t group, unsigned seed) {
    const int32_t id = find_format(name);
    const Format &format = format_of(id);
    matrix = lay_out({kColumns, {kRows}, {{0, 0, kRows, 0, kColumns, id, group}}});
    Run &run = matrix.runs[0];
    memory.resize(static_cast<size_t>(run.panels * run.stride));
    run.data = memory.data();
    const RowBytes bytes = row_bytes(run);
    std::mt19937 random(seed);
    std::vector<uint8_t> codes, extra;
    std::vector<uint16_t> scales, halves;
    const auto half = [&] { return float_to_half(static_cast<float>(static_cast<int32_t>(random() % 2001) - 1000) / 4000); };
    for (int64_t n = 0; n < kRows * run.groups; ++n)
      scales.push_back(half());
    if (format.codes) {
      for (int64_t n = 0; n < kRows * bytes.codes; ++n)
        codes.push_back(static_cast<uint8_t>(random()));
      for (int64_t n = 0; n < kRows * bytes.extra; ++n)
        extra.push_back(static_cast<uint8_t>(random()));
      if (bytes.extra == run.groups * 2) { // any two bytes would make some huge numbers
        for (int64_t n = 0; n < kRows * run.groups; ++n)
          halves.push_back(half());
        std::copy_n(reinterpret_cast<const uint8_t *>(halves.data()), extra.size(), extra.data());
      }
    } else {
      const std::vector<float> numbers = random_floats(kRows * kColumns, seed);
      std::vector<uint16_t> small;
      for (float number : numbers)
        small.push_back(float_to_half(number));
      const uint8_t *from = format.bits == 16 ? reinterpret_cast<const uint8_t *>(small.data())
                                              : reinterpret_cast<const uint8_t *>(numbers.data());
      codes.assign(from, from + kRows * kColumns * format.bits / 8);
      for (size_t n = 0; n < numbers.size(); ++n)
        weights.push_back(format.bits == 16 ? half_to_float(small[n]) : numbers[n]);
    }
    for (int64_t row = 0; row < kRows && format.codes; ++row)
      for (int64_t column = 0; column < kColumns; ++column) {
        const int64_t at = row * run.groups + column / group;
        const uint8_t byte = codes[static_cast<size_t>(row * bytes.codes + column * format.bits / 8)];
        const int32_t code = format.bits == 8 ? byte : byte >> (column % 2 * 4) & 15;
        const double scale = half_to_float(scales[static_cast<size_t>(at)]);
        double offset = scale * (format.bits == 8 ? -128 : -8);
        if (std::string(name) == "int4-affine")
          offset = half_to_float(halves[static_cast<size_t>(at)]);
        if (std::string(name) == "int4-zp")
          offset = -scale * (extra[static_cast<size_t>(row * bytes.extra + column / group / 2)] >> (column / group % 2 * 4) & 15);
        weights.push_back(scale * code + offset);
      }
    pack(run, {0, kRows, codes.data(), scales.data(), extra.data()});
  }

  // The products of a row, and of absolute numbers: what rounding is measured by.
  std::pair<double, double> dot(int64_t row, const double *x) const {
    double sum = 0, magnitude = 0;
    for (int64_t n = 0; n < kColumns; ++n) {
      const double product = weights[static_cast<size_t>(row * kColumns + n)] * x[n];
      sum += product;
      magnitude += std::fabs(product);
    }
    return {sum, magnitude};
  }
};

constexpr int64_t kMostRows = 2 * kTile + 1;
constexpr int64_t kCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, kMostRows};

// Panels times `count` rows, for every count: `multiply(panel, first, count, out)` gives rows first … of it. They are what
// x [kMostRows][columns] gives in double, and the same bits as of each row alone.
template <typename Multiply>
void check_panels(const Packed &packed, const std::vector<double> &x, const Multiply &multiply, const std::string &what) {
  for (int64_t panel = 0; panel < packed.matrix.panels; ++panel) {
    std::vector<float> alone(kMostRows * kPanel);
    for (int64_t row = 0; row < kMostRows; ++row) {
      multiply(panel, row, 1, alone.data() + row * kPanel);
      for (int64_t n = 0; n < std::min<int64_t>(kPanel, Packed::kRows - panel * kPanel); ++n) {
        const auto [sum, magnitude] = packed.dot(panel * kPanel + n, x.data() + row * Packed::kColumns);
        const double found = alone[static_cast<size_t>(row * kPanel + n)];
        expect(std::fabs(found - sum) <= 2e-6 * magnitude, what + ": " + std::to_string(found) + " instead of " + std::to_string(sum));
      }
    }
    for (int64_t count : kCounts) {
      std::vector<float> found(static_cast<size_t>(count * kPanel + 1), 7.0f);
      multiply(panel, 0, count, found.data());
      expect(found.back() == 7.0f, what + " writes nothing behind its rows");
      expect(std::equal(found.begin(), found.end() - 1, alone.begin()), what + ": a row is the same bits among others");
    }
  }
}

void test_codes(const Kernels &k, const char *name, int32_t group, float crest) {
  const Packed packed(name, group, 21);
  const int64_t width = padded_codes(Packed::kColumns), blocks = width / kBlock;
  std::vector<float> x = random_floats(kMostRows * Packed::kColumns, 22);
  for (size_t n = 0; n < x.size(); n += 97) // so that some blocks are flagged
    x[n] *= 20;
  const size_t all = static_cast<size_t>(kMostRows * blocks);
  std::vector<int8_t> hi(all * kBlock), lo(all * kBlock);
  std::vector<Block> block(all);
  std::vector<uint8_t> flag(all);
  const QuantRows q{hi.data(), lo.data(), block.data(), flag.data(), blocks};
  std::vector<double> kept;
  size_t flagged = 0;
  for (int64_t row = 0; row < kMostRows; ++row) {
    k.quantize(x.data() + row * Packed::kColumns, Packed::kColumns, crest, q, row);
    for (int64_t n = 0; n < Packed::kColumns; ++n) {
      const size_t at = static_cast<size_t>(row * width + n), of = at / kBlock;
      kept.push_back(block[of].scale * (hi[at] + (flag[of] ? lo[at] / 128.0 : 0)));
      flagged += flag[of];
    }
  }
  expect(crest == 100 ? flagged == 0 : crest == 0 ? flagged == kept.size() : flagged > 0 && flagged < kept.size(),
         "some blocks are flagged, all, or none");
  const auto multiply = [&](int64_t panel, int64_t first, int64_t count, float *out) {
    std::vector<uint32_t> tiles(static_cast<size_t>(tiles_of(count) * blocks), 0);
    for (int64_t row = 0; row < count; ++row)
      for (int64_t n = 0; n < blocks; ++n)
        tiles[static_cast<size_t>(row / kTile * blocks + n)] |= uint32_t{flag[static_cast<size_t>((first + row) * blocks + n)]}
                                                               << row % kTile;
    const Run &run = packed.matrix.runs[0];
    k.linear[run.format].panel(run, panel, q.from(first), tiles.data(), count, out);
  };
  check_panels(packed, kept, multiply, std::string(name) + " of " + std::to_string(group));
}

void test_floats(const Kernels &k, const char *name, int32_t group) {
  const Packed packed(name, group, 23);
  const std::vector<float> x = random_floats(kMostRows * Packed::kColumns, 24);
  std::vector<float> scratch(static_cast<size_t>((Packed::kColumns + kMostGroup) * kPanel));
  const auto multiply = [&](int64_t panel, int64_t first, int64_t count, float *out) {
    const Run &run = packed.matrix.runs[0];
    k.linear[run.format].panel_float(run, panel, x.data() + first * Packed::kColumns, Packed::kColumns, count,
                                     scratch.data(), out);
  };
  check_panels(packed, {x.begin(), x.end()}, multiply, std::string(name) + " times floats");
}

void test_panels(const Kernels &k) {
  for (const char *name : {"int4-sym", "int4-zp", "int4-affine", "int8-sym"})
    for (int32_t group : {32, 64, 128}) {
      if (format_of(find_format(name)).bits == 8 && group > 32)
        continue;
      for (float crest : {0.0f, 4.0f, 100.0f})
        test_codes(k, name, group, crest);
      test_floats(k, name, group);
    }
  for (const char *name : {"float16", "float32"})
    test_floats(k, name, 0);
}

} // namespace

int main() {
  for (const char *name : usable_sets()) {
    std::printf("%s ", name);
    const Kernels &k = *find_kernels(name);
    for (int64_t width : kWidths) {
      test_norm(k, width);
      test_rows(k, width);
      test_rope(k, width);
      test_logits(k, width);
      test_quantize(k, width);
      for (KvFormat format : {KvFormat::kFloat32, KvFormat::kFloat16, KvFormat::kInt8})
        for (float softcap : {0.0f, 2.0f})
          for (int64_t offset : {48, 37})
            for (bool latent : {false, true})
              test_attention(k, static_cast<int32_t>(width), format, softcap, offset, latent);
    }
    test_panels(k);
    test_logits(k, 5000); // of several sums
    for (KvFormat format : {KvFormat::kFloat32, KvFormat::kFloat16, KvFormat::kInt8})
      test_gap(k, format);
  }
  std::puts("all passed");
  return 0;
}
