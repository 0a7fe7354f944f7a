// What the formats of floats have in common: numbers, multiplied by float activations. A format adds how 16 are loaded.
#pragma once

template <typename Format, typename Number> struct FloatWeights {
  static constexpr int kBits = sizeof(Number) * 8;
  static constexpr bool kCodes = false;
  static constexpr int64_t kExtra = 0;

  static int64_t row_extra(int64_t) { return 0; }
  // Puts row `row` of `rows` into lane `lane` of its panel.
  static void pack(const Run &run, const SourceRows &rows, int64_t row, uint8_t *panel, int lane) {
    for (int64_t column = 0; column < run.columns; ++column)
      __builtin_memcpy(panel + (column * kPanel + lane) * sizeof(Number),
                       rows.codes + (row * run.columns + column) * sizeof(Number), sizeof(Number));
  }
  // Sixteen rows of a column as floats.
  static Floats unpack(const Run &, const uint8_t *panel, int64_t column, int half) {
    return Format::sixteen((const Number *)panel + column * kPanel + half * 16);
  }
};
