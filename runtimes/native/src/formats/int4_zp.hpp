// int4-gN-zp: w = scale · (code - zero), zero points of 4 bits, two of a row's groups in a byte of the payload. In a panel
// each has a byte, padded to the size of the scales so that lines stay aligned.
#pragma once

struct Int4Zp : Codes<Int4Zp, 4> {
  static constexpr const char *kName = "int4-zp";
  static constexpr int64_t kExtra = kPanel * 2;
  static constexpr bool kOffsets = false;

  static int64_t row_extra(int64_t groups) { return (groups + 1) / 2; }
  static void pack_extra(const Run &run, const SourceRows &rows, int64_t row, int64_t group, uint8_t *extra, int lane) {
    extra[lane] = rows.extra[row * ((run.groups + 1) / 2) + group / 2] >> (group % 2 * 4) & 15;
  }
  static GroupData load(const Run &run, const uint8_t *group, int half) {
    GroupData data = load_scales(run, group, half);
    data.zeros = widen(group + run.extra_at + half * 16);
    return data;
  }
  static Floats shift(const GroupData &data) { return sub(splat(0), mul(data.scales, to_float(data.zeros))); }
  static Ints start(const GroupData &data, int32_t eight) { return mul(data.zeros, splat_int(eight / 8)); }
};
