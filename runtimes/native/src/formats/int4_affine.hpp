// int4-gN-affine: w = scale · code + offset, a float16 offset for each group.
#pragma once

struct Int4Affine : Codes<Int4Affine, 4> {
  static constexpr const char *kName = "int4-affine";
  static constexpr int64_t kExtra = kPanel * 2;
  static constexpr bool kOffsets = true;

  static int64_t row_extra(int64_t groups) { return groups * 2; }
  static void pack_extra(const Run &run, const SourceRows &rows, int64_t row, int64_t group, uint8_t *extra, int lane) {
    __builtin_memcpy(extra + lane * 2, rows.extra + (row * run.groups + group) * 2, 2);
  }
  static GroupData load(const Run &run, const uint8_t *group, int half) {
    GroupData data = load_scales(run, group, half);
    data.offsets = load_half((const uint16_t *)(group + run.extra_at) + half * 16);
    return data;
  }
  static Floats shift(const GroupData &data) { return data.offsets; }
  static Ints start(const GroupData &, int32_t) { return splat_int(0); }
};
