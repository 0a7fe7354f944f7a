// What the tests of ops have in common: a program around one instruction, whose rows are run in several cuts, and compared
// with numbers that a test computes for a row in double.
#pragma once

#include "../decoder.hpp"
#include "../expect.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace dsedge::test {

constexpr int64_t kRows = 150; // enough for three threads to take bands of them

// A program whose token n picks row n of every input, and whose logits are the floats of one buffer.
class OpProgram {
public:
  Program program;

  OpProgram() {
    program.buffers = {{1, false, true}};
    program.ropes = {4};
    program.kv = {{{2 * whole_lines(kRows), kRows}}, {}}; // slots for two sequences
  }

  // Buffers that an instruction fills.
  int32_t floats(int64_t width, bool wanted = false) { return buffer({width, false, wanted}); }
  int32_t codes(int64_t width, bool wanted = false) { return buffer({width, true, wanted}); }
  // A buffer whose rows are random numbers, or the given ones [kRows][width].
  int32_t input(int64_t width, std::vector<float> rows = {}) {
    const int32_t id = floats(width);
    std::mt19937 random(static_cast<unsigned>(id));
    for (size_t n = rows.size(); n < static_cast<size_t>(kRows * width); ++n)
      rows.push_back(number(random));
    program.matrices.push_back(in_one_format("float32", 0, width, {kRows}));
    weights_.push_back(std::move(rows));
    add(Embed{.output = {id}, .matrix = {static_cast<int32_t>(program.matrices.size()) - 1}, .scale = 1});
    inputs_.resize(static_cast<size_t>(id) + 1);
    inputs_[static_cast<size_t>(id)] = weights_.back();
    return id;
  }
  // The codes, 16 bits each, of an input.
  int32_t codes_of(int32_t input) {
    const int32_t id = codes(program.buffer(input).width);
    add(Quantize{.input = {input}, .output = {id}, .crest = 0});
    return id;
  }
  // Weights of random numbers, as float32 or as codes of 8 bits.
  int32_t matrix(int64_t columns, std::vector<int64_t> rows, bool coded) {
    program.matrices.push_back(coded ? in_one_format("int8-sym", 32, columns, rows) : in_one_format("float32", 0, columns, rows));
    std::mt19937 random(static_cast<unsigned>(program.matrices.size()));
    weights_.emplace_back();
    for (int64_t count : rows)
      for (int64_t n = 0; n < count * columns; ++n)
        weights_.back().push_back(coded ? static_cast<float>(static_cast<int32_t>(random() % 255) - 127) / 64 : number(random));
    return static_cast<int32_t>(program.matrices.size()) - 1;
  }
  int32_t vector(size_t size) {
    std::mt19937 random(static_cast<unsigned>(size));
    program.vectors.emplace_back();
    for (size_t n = 0; n < size; ++n)
      program.vectors.back().push_back(number(random));
    return static_cast<int32_t>(program.vectors.size()) - 1;
  }
  void add(Instruction instruction) { program.instructions.push_back(std::move(instruction)); }

  const float *row(int32_t input, int64_t row) const {
    return inputs_[static_cast<size_t>(input)].data() + row * program.buffer(input).width;
  }
  // Row `row` of a matrix, whose weights are under one another.
  const float *weight(int32_t matrix, int64_t row) const {
    return weights_[static_cast<size_t>(matrix)].data() + row * program.matrix(matrix).columns;
  }
  double dot(const float *x, int32_t matrix, int64_t of) const {
    double sum = 0;
    for (int64_t n = 0; n < program.matrix(matrix).columns; ++n)
      sum += double{x[n]} * weight(matrix, of)[n];
    return sum;
  }

  // Checks rows of a buffer: each cut gives the same bits, and they are expected(row)[n] within the bound. Codes are looked
  // at by a product with 1.
  template <typename Expected>
  void check(const char *kernels, int32_t output, const Expected &expected, double bound = 1e-5) const {
    const int64_t width = program.buffer(output).width;
    const std::vector<float> found = run(kernels, output, 1, kRows);
    const std::pair<int32_t, int64_t> cuts[] = {{3, kRows}, {3, 7}, {1, 7}, {2, 1}}; // threads, rows at a time
    for (const auto &[threads, chunk] : cuts)
      expect(run(kernels, output, threads, chunk) == found, "the same bits in every cut of the rows: " + name(kernels));
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<double> wanted = expected(row);
      for (int64_t n = 0; n < width; ++n) {
        const double value = found[static_cast<size_t>(row * width + n)], right = wanted[static_cast<size_t>(n)];
        expect(std::fabs(value - right) <= bound * (1 + std::fabs(right)), // not of NaN
               name(kernels) + ": " + std::to_string(value) + " instead of " + std::to_string(right));
      }
    }
  }

  // Requires that the program is refused, by the name of the op, once its instruction of that kind or its tables are changed.
  template <typename Kind, typename Change> void refuses(const char *what, const Change &change) const {
    Program changed = program;
    for (Instruction &i : changed.instructions)
      if (const Kind *found = std::get_if<Kind>(&i.operands)) {
        Kind operands = *found;
        change(operands, changed);
        i = operands;
        break;
      }
    std::string said = "nothing";
    try {
      verify(changed);
    } catch (const std::invalid_argument &error) {
      said = error.what();
    }
    expect(said.find(std::string("(") + Kind::kKind + ") has") != std::string::npos,
           std::string(Kind::kKind) + " refuses " + what + ", and said: " + said);
  }

private:
  static float number(std::mt19937 &random) { return static_cast<float>(random() / 2147483648.0 - 1); }

  int32_t buffer(Buffer buffer) {
    program.buffers.push_back(buffer);
    return static_cast<int32_t>(program.buffers.size()) - 1;
  }
  std::string name(const char *kernels) const { return std::string(program.instructions.back().op().name) + ", " + kernels; }

  // Logits of all rows, in chunks of that many.
  std::vector<float> run(const char *kernels, int32_t output, int32_t threads, int64_t chunk) const {
    OpProgram shown = *this;
    shown.show(output);
    Engine engine(shown.program, *find_kernels(kernels), threads);
    for (size_t m = 0; m < shown.weights_.size(); ++m)
      shown.fill(engine, static_cast<int32_t>(m));
    Sequence sequence(engine);
    std::vector<float> logits;
    for (int64_t first = 0; first < kRows; first += chunk) {
      std::vector<int32_t> tokens;
      for (int64_t row = first; row < std::min(first + chunk, kRows); ++row)
        tokens.push_back(static_cast<int32_t>(row));
      for (float logit : sequence.feed(tokens))
        logits.push_back(logit);
    }
    return logits;
  }
  // Makes a buffer the logits.
  void show(int32_t output) {
    const Buffer of = program.buffer(output);
    program.buffers[kLogits].width = of.width;
    if (of.codes) { // times the identity
      const int32_t identity = matrix(of.width, {of.width}, true), product = of.wanted ? kLogits : floats(of.width);
      for (int64_t row = 0; row < of.width; ++row)
        for (int64_t n = 0; n < of.width; ++n)
          weights_.back()[static_cast<size_t>(row * of.width + n)] = row == n;
      add(Linear{.input = {output}, .outputs = {{product}}, .matrix = {identity}, .biases = {{kNone}}});
      output = product;
    }
    if (!of.wanted)
      add(Select{.input = {output}, .output = {kLogits}});
    else if (!of.codes)
      add(Add{.left = {output}, .right = {output}, .output = {kLogits}}); // twice the numbers
  }
  void fill(Engine &engine, int32_t matrix) const {
    const MatrixShape &shape = program.matrix(matrix);
    const bool coded = format_of(shape.runs[0].format).codes;
    const float *from = weight(matrix, 0);
    for (size_t n = 0; n < shape.runs.size(); ++n) {
      const int64_t count = shape.runs[n].rows * shape.columns, groups = (shape.columns + 31) / 32;
      std::vector<uint8_t> codes;
      for (int64_t row = 0; coded && row < shape.runs[n].rows; ++row)
        for (int64_t column = 0; column < groups * 32; ++column)
          codes.push_back(static_cast<uint8_t>(
              128 + (column < shape.columns ? std::lround(from[row * shape.columns + column] * 64) : 0)));
      const std::vector<uint16_t> scales(static_cast<size_t>(shape.runs[n].rows * groups), 0x2400); // 1/64
      const uint8_t *bytes = coded ? codes.data() : reinterpret_cast<const uint8_t *>(from);
      engine.pack(matrix, static_cast<int32_t>(n), {0, shape.runs[n].rows, bytes, scales.data(), nullptr});
      from += count;
    }
  }

  std::vector<std::vector<float>> weights_, inputs_; // by matrix, by buffer
};

} // namespace dsedge::test
