// The engine as a whole. Run under sanitizers by ../sanitize.sh and under emulation by ../arm.sh.
#include "decoder.hpp"
#include "expect.hpp"

#include "simd/half.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

using namespace dsedge;
using namespace dsedge::test;

namespace {

// Widths and heads that are no multiples of a block, of 16 lanes or of 8; the ring goes round soon.
const Sizes kOdd[] = {{45, 6, 2, 13, 6, 37, 96, 47, 3, KvFormat::kFloat16},
                      {57, 3, 3, 20, 20, 33, 96, 50, 0, KvFormat::kFloat16},
                      {33, 4, 1, 100, 50, 65, 80, 20, 0, KvFormat::kFloat32}};
// Latents of whole and of broken lines.
const Sizes kLatent[] = {{48, 6, 1, 32, 16, 70, 400, 290, 3, KvFormat::kFloat16, true},
                         {45, 5, 1, 20, 6, 37, 400, 300, 0, KvFormat::kInt8, true},
                         {33, 17, 1, 13, 8, 65, 400, 290, 3, KvFormat::kFloat32, true}};
// A chunk of 40 over a window of 7.
const Sizes kShort = {48, 6, 2, 24, 16, 70, 80, 7, 3, KvFormat::kFloat16};
// Matrices in runs of formats.
const Sizes kRuns = {162, 6, 2, 24, 16, 150, 400, 290, 3, KvFormat::kFloat16, false, true};
// A chunk of which each thread takes blocks of rows through several layers.
const Sizes kLong = {45, 6, 2, 13, 6, 37, 352, 160, 3, KvFormat::kFloat16};

std::vector<int32_t> random_tokens(size_t count) {
  std::mt19937 random(3);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random() % kVocab));
  return tokens;
}

// Logits of every token, fed in chunks of the given sizes in turn.
std::vector<float> run(const char *kernels, int32_t threads, const std::vector<size_t> &sizes, size_t count,
                       const Sizes &shape = {}) {
  Engine engine(make_program(shape), *find_kernels(kernels), threads);
  fill(engine);
  Sequence sequence(engine, shape);
  const std::vector<int32_t> tokens = random_tokens(count);
  std::vector<float> logits;
  for (size_t done = 0, turn = 0; done < count; ++turn) {
    const size_t size = std::min(sizes[turn % sizes.size()], count - done);
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(done);
    for (float logit : sequence.feed({first, first + static_cast<std::ptrdiff_t>(size)}))
      logits.push_back(logit);
    done += size;
  }
  return logits;
}

bool same(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

void test_bits(const char *kernels) {
  const std::vector<float> expected = run(kernels, 1, {40}, 800); // once round a ring of 400 slots
  for (float logit : expected)
    expect(std::isfinite(logit) && std::fabs(logit) <= 30, "logits within their soft-cap");
  const std::vector<std::vector<size_t>> cuts = {{1}, {40}, {7, 1, 1, 30}};
  for (int32_t threads : {2, 4})
    for (const auto &sizes : cuts)
      expect(same(run(kernels, threads, sizes, 800), expected), std::string("same bits on other threads and chunks: ") + kernels);
  for (const Sizes &shape : kOdd)
    expect(same(run(kernels, 2, {30, 1, 8}, 120, shape), run(kernels, 1, {1}, 120, shape)),
           std::string("same bits for odd widths: ") + kernels);
  for (const Sizes &shape : kLatent)
    expect(same(run(kernels, 3, {30, 1, 8}, 330, shape), run(kernels, 1, {1}, 330, shape)),
           std::string("same bits for latents: ") + kernels);
  expect(same(run(kernels, 3, {30, 1, 8}, 90, kRuns), run(kernels, 1, {1}, 90, kRuns)),
         std::string("same bits from runs of formats: ") + kernels);
  expect(same(run(kernels, 2, {40, 3}, 90, kShort), run(kernels, 1, {1}, 90, kShort)),
         std::string("same bits from a chunk above the window: ") + kernels);
  const std::vector<float> alone = run(kernels, 1, {1}, 330, kLong);
  for (int32_t threads : {1, 2, 3})
    expect(same(run(kernels, threads, {150, 130}, 330, kLong), alone),
           std::string("same bits from blocks of rows: ") + kernels);
}

// With float32 keys and values: products of bfloat16 pairs, which one set has for float16, are too coarse for scores as
// large as those of this model. test_kernels.cpp looks at them alone.
void test_sets_agree(Sizes shape) {
  for (KvFormat format : {shape.format, KvFormat::kFloat32}) {
    shape.format = format;
    const std::vector<float> expected = run("portable", 1, {30}, 40, shape);
    for (const char *name : usable_sets()) {
      if (format == KvFormat::kFloat16 && std::string(name) == "avx512bf16")
        continue;
      const std::vector<float> found = run(name, 1, {30}, 40, shape);
      for (size_t i = 0; i < found.size(); ++i)
        expect(std::fabs(found[i] - expected[i]) < 0.05f, std::string("kernel sets agree: ") + name);
    }
    if (find_kernels("i8mm"))
      expect(same(run("i8mm", 1, {30, 9}, 40, shape), run("neon", 1, {30, 9}, 40, shape)), "i8mm gives the bits of neon");
  }
}

void test_rotations() {
  Engine engine(make_program(), *find_kernels(""), 2);
  fill(engine);
  Sequence(engine).feed(random_tokens(30));
  engine.kv().copy(0, 0, 400, 30);
  engine.kv().rotate(0, 0, 400, 3, std::vector<float>(8, 0.0f), std::vector<float>(8, 1.0f));
  const KvHead s = engine.kv().head(0, 1);
  const auto at = [&](int64_t slot, int64_t d) {
    return half_to_float(static_cast<const uint16_t *>(s.keys)[slot / 16 * 16 * s.key_dim + d * 16 + slot % 16]);
  };
  expect(at(401, 0) == -at(1, 8) && at(401, 8) == at(1, 0), "a quarter turn swaps a pair of a key");
  expect(at(405, 0) == at(5, 0) && at(401, 20) == at(1, 20), "what is not to be rotated, or not rotary, stays");
}

// A forward may want no logits, and what it keeps is the same.
void test_no_wanted_rows() {
  std::vector<float> found[2];
  for (int64_t times : {0, 1}) {
    Engine engine(make_program(), *find_kernels(""), 2);
    fill(engine);
    Sequence sequence(engine);
    for (size_t count : {size_t{30}, size_t{1}, size_t{1}})
      expect(sequence.feed(random_tokens(count), times).size() == static_cast<size_t>(times) * count * kVocab, "as many as wanted");
    found[times] = sequence.feed(random_tokens(3));
  }
  expect(same(found[0], found[1]), "rows that nobody wanted are kept all the same");
}

void test_a_row_that_is_wanted_twice() {
  Engine engine(make_program(), *find_kernels(""), 2);
  fill(engine);
  Sequence sequence(engine);
  sequence.feed({5, 6, 7});
  const std::vector<float> both = sequence.feed({8}, 2);
  expect(std::memcmp(both.data(), both.data() + kVocab, kVocab * 4) == 0, "a row that is wanted twice has the same logits");
}

// What no instruction by itself shows to be wrong.
void test_contradictions() {
  const auto refused = [](const char *what, const auto &change) {
    Program p = make_program();
    change(p);
    bool thrown = false;
    try {
      verify(p);
    } catch (const std::invalid_argument &) {
      thrown = true;
    }
    expect(thrown, what);
  };
  refused("a layer whose keys are written twice",
          [](Program &p) { p.instructions.push_back(KvWrite{.keys = {kK}, .values = {kV}, .layer = {0}}); });
  refused("an output that is the input of a product", [](Program &p) {
    p.buffers[kQ].width = p.buffers[kX].width;
    p.instructions.push_back(Linear{.input = {kX}, .outputs = {{kX}}, .matrix = {0}, .biases = {{kNone}}});
  });
  refused("codes where floats belong", [](Program &p) {
    p.instructions.push_back(Add{.left = {kHiddenCodes}, .right = {kX}, .output = {kX}});
  });
  refused("a product with codes for a matrix of floats", [](Program &p) {
    p.instructions.push_back(Linear{.input = {kWantedCodes}, .outputs = {{0}}, .matrix = {0}, .biases = {{kNone}}});
  });
  refused("all rows where the wanted ones belong",
          [](Program &p) { p.instructions.push_back(Add{.left = {kX}, .right = {kX}, .output = {kWanted}}); });
  refused("a buffer that nothing has written", [](Program &p) { p.instructions.erase(p.instructions.begin()); });
  refused("logits that nothing writes", [](Program &p) {
    p.instructions.pop_back();
    p.instructions.pop_back();
  });
  refused("keys that are written behind the attention to them",
          [](Program &p) { std::swap(p.instructions[3], p.instructions[4]); });
  refused("two outputs in one buffer", [](Program &p) {
    Linear projections = as<Linear>(p.instructions[2]);
    projections.outputs = {{kQ, kK, kK}};
    p.instructions[2] = projections;
    p.instructions[3] = KvWrite{.keys = {kK}, .values = {kK}, .layer = {0}, .rope = {0}};
  });
}

// Changes the operand of that number, if there is one.
struct Change {
  int &left;
  int32_t value;

  void set(int32_t &x) const {
    if (left-- == 0)
      x = value;
  }
  void operator()(const char *, Id &x) const { set(x.id); }
  void operator()(const char *, Activation &x) const { set(x.kind); }
  void operator()(const char *, Integer &x) const {
    if (left-- == 0)
      x = value;
  }
  void operator()(const char *, Real &x) const {
    if (left-- == 0)
      x = static_cast<float>(value);
  }
  void list(std::vector<int32_t> &ids) const {
    for (int32_t &id : ids)
      set(id);
    if (left-- == 0)
      ids.push_back(value);
  }
  void operator()(const char *, WritesList &x) const { list(x.ids); }
  void operator()(const char *, MaybeVectorList &x) const { list(x.ids); }
};

Instruction changed(const Instruction &i, int number, int32_t value) {
  Operands operands = i.operands;
  std::visit(
      [&](auto &kind) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(kind)>, std::monostate>)
          each_field(kind, Change{number, value});
      },
      operands);
  return operands;
}

// A number of a program changed at random: refused, or run within its memory (the sanitizers watch).
void test_hostile_programs() {
  std::mt19937 random(11);
  const int32_t values[] = {-2, -1, 0, 1, 2, 3, 7, 31, 48, 1 << 15, 2147483647, -2147483647 - 1};
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    Program p = make_program(round % 3 == 0 ? kLatent[0] : round % 3 == 1 ? kRuns : Sizes{});
    Instruction &i = p.instructions[random() % p.instructions.size()];
    const int32_t value = values[random() % std::size(values)];
    switch (random() % 7) {
    case 0:
      p.buffers[random() % p.buffers.size()].width = value;
      break;
    case 1:
      p.matrices[random() % p.matrices.size()].rows[0] = value;
      break;
    case 2:
      p.matrices[random() % p.matrices.size()].columns = value;
      break;
    case 3: {
      std::vector<RunShape> &runs = p.matrices[random() % p.matrices.size()].runs;
      RunShape &run = runs[random() % runs.size()];
      int64_t *places[] = {&run.row, &run.rows, &run.column, &run.columns};
      *places[random() % 4] = value;
      run.group = random() % 4 ? run.group : value;
      break;
    }
    case 4: {
      KvLayer &layer = p.kv.layers[0];
      int32_t *sizes[] = {&layer.ring, &layer.kv_heads, &layer.key_dim, &layer.value_dim};
      *sizes[random() % 4] = value;
      break;
    }
    default:
      i = changed(i, static_cast<int>(random() % 8), value);
    }
    try {
      Engine engine(p, *find_kernels(round % 2 ? "portable" : ""), 1 + round % 3);
      Sequence(engine).feed({1, 2, 3});
    } catch (const std::invalid_argument &) {
      ++refused;
    }
  }
  expect(refused > 200, "most changed programs are refused");
}

// A number that is not finite has no code: its whole block's are 0, and the scale is NaN.
void test_blocks_without_codes(const char *kernels) {
  for (float value : {NAN, INFINITY, -INFINITY}) {
    float x[kBlock] = {1, 2, value};
    int8_t hi[kBlock], lo[kBlock];
    Block block{0, 0, 1, 1};
    uint8_t flag = 0;
    find_kernels(kernels)->quantize_block(x, 1, 4.5f, {hi, lo, &block, &flag, 1}, 0);
    expect(std::isnan(block.scale) && std::isnan(block.sum) && block.eight_hi == 0 && block.eight_lo == 0 && hi[2] == 0 && hi[1] == 0,
           std::string("a block that is not finite has no codes: ") + kernels);
  }
}

// More units than the word of a phase can hold are refused before they could reach another field.
void test_pool_bounds() {
  Pool pool(2, 1, [](int32_t, int32_t, int32_t, int32_t) {});
  for (const std::vector<int32_t> &units : {std::vector<int32_t>{1 << 20}, {-1}, {1, 1}}) {
    bool refused = false;
    try {
      pool.run(units);
    } catch (const std::invalid_argument &) {
      refused = true;
    }
    expect(refused, "a pool refuses what a phase cannot hold");
  }
}

void test_pool() {
  const std::vector<int32_t> units = {1, 7, 0, 100, 3, 2000};
  std::vector<std::atomic<int32_t>> seen(6 * 2000); // of each phase, of each unit
  Pool pool(4, 6, [&](int32_t phase, int32_t begin, int32_t end, int32_t) {
    for (int32_t unit = begin; unit < end; ++unit)
      seen[static_cast<size_t>(phase * 2000 + unit)].fetch_add(1);
  });
  for (int run = 0; run < 300; ++run)
    pool.run(units);
  for (size_t phase = 0; phase < units.size(); ++phase)
    for (size_t unit = 0; unit < 2000; ++unit)
      expect(seen[phase * 2000 + unit].load() == (static_cast<int32_t>(unit) < units[phase] ? 300 : 0),
             "every unit runs once a run");
}

} // namespace

int main() {
  for (const char *name : usable_sets()) {
    std::printf("%s ", name);
    test_bits(name);
    test_blocks_without_codes(name);
  }
  test_sets_agree({});
  test_sets_agree(kRuns);
  for (const Sizes &shape : kOdd)
    test_sets_agree(shape);
  for (const Sizes &shape : kLatent)
    test_sets_agree(shape);
  test_rotations();
  test_no_wanted_rows();
  test_a_row_that_is_wanted_twice();
  test_contradictions();
  test_hostile_programs();
  test_pool();
  test_pool_bounds();
  std::puts("all passed");
  return 0;
}
