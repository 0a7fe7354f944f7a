// int8-gN-sym: w = scale · (code - 128). A kernel set multiplies codes as they are, or takes the 128 off itself.
#pragma once

struct Int8Sym : Codes<Int8Sym, 8> {
  static constexpr const char *kName = "int8-sym";
  static constexpr int64_t kExtra = 0;
  static constexpr bool kOffsets = false;

  static int64_t row_extra(int64_t) { return 0; }
  static void pack_extra(const Run &, const SourceRows &, int64_t, int64_t, uint8_t *, int) {}
  static GroupData load(const Run &run, const uint8_t *group, int half) { return load_scales(run, group, half); }
  static Floats shift(const GroupData &data) { return mul(data.scales, splat(-128)); }
  static Ints start(const GroupData &, int32_t eight) { return splat_int(kSignedZero8 / 8 * eight); }
};
