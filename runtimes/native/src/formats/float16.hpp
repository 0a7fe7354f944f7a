// float16: numbers, multiplied by float activations.
#pragma once

struct Float16 {
  static constexpr const char *kName = "float16";
  static constexpr int kBits = 16;
  static constexpr bool kCodes = false;
  static constexpr int64_t kExtra = 0;

  static int64_t row_extra(int64_t) { return 0; }
  static void pack(const Matrix &m, const SourceRows &rows, int64_t row, uint8_t *panel, int lane) {
    for (int64_t column = 0; column < m.columns; ++column)
      __builtin_memcpy(panel + (column * kPanel + lane) * 2, rows.codes + (row * m.columns + column) * 2, 2);
  }
  static Floats unpack(const Matrix &, const uint8_t *panel, int64_t column, int half) {
    return load_half((const uint16_t *)panel + column * kPanel + half * 16);
  }
};
