// What the formats of integer codes have in common. A format adds what its zero point is.
//
//   kExtra               bytes for 32 rows of a group beside codes and scales
//   row_extra, pack_extra  the same in the payload, for a row; and its way into the panel
//   load                 the scales and zero points of 16 rows of a group
//   shift                a weight is scale · code + shift
//   start                the initial value of integer sums, with which they are sums of (code - zero) · x; `eight` is -8
//                        times the sum of x
//   kOffsets             whether `offsets` times the sum of x is added in floats, and `start` is 0
#pragma once

struct GroupData { // of one group, for 16 rows
  Floats scales, offsets;
  Ints zeros;
};

// Moves the two bytes of x apart.
inline uint32_t spread(uint64_t x) { return (uint32_t)((x & 0xff) | (x & 0xff00) << 8); }

// Sixteen bytes of a row, 32 columns, become four words with columns 0…15 in the low nibbles and 16…31 in the high.
inline void pack_nibbles(const uint8_t *source, uint8_t *lines) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  uint64_t a, b;
  __builtin_memcpy(&a, source, 8);
  __builtin_memcpy(&b, source + 8, 8);
  const uint64_t even = (a & kLow) | (b & kLow) << 4, odd = (a >> 4 & kLow) | (b & ~kLow);
  for (int line = 0; line < 4; ++line) {
    const uint32_t word = spread(even >> 16 * line) | spread(odd >> 16 * line) << 8;
    __builtin_memcpy(lines + line * 64, &word, 4);
  }
}

// Format: the format itself, which derives from this.
template <typename Format, int kCodeBits> struct Codes {
  static constexpr int kBits = kCodeBits;
  static constexpr bool kCodes = true;

  // Puts row `row` of `rows` into lane `lane` of its panel.
  static void pack(const Run &run, const SourceRows &rows, int64_t row, uint8_t *panel, int lane) {
    const int64_t bytes = (int64_t)run.group * kBits / 8; // of a row's codes in a group
    for (int64_t group = 0; group < run.groups; ++group, panel += run.group_bytes) {
      const uint8_t *codes = rows.codes + (row * run.groups + group) * bytes;
      for (int64_t block = 0; block < run.group / kBlock; ++block) {
        uint8_t *lines = panel + (block * 2 + lane / 16) * kBits * 64 + lane % 16 * 4;
        if (kBits == 4)
          pack_nibbles(codes + block * 16, lines);
        else
          for (int line = 0; line < 8; ++line)
            __builtin_memcpy(lines + line * 64, codes + block * 32 + line * 4, 4);
      }
      __builtin_memcpy(panel + run.scales_at + lane * 2, rows.scales + row * run.groups + group, 2);
      Format::pack_extra(run, rows, row, group, panel + run.extra_at, lane);
    }
  }

  static GroupData load_scales(const Run &run, const uint8_t *group, int half) {
    GroupData data;
    data.scales = load_half((const uint16_t *)(group + run.scales_at) + half * 16);
    return data;
  }

  // The codes of 16 rows in one column.
  static Ints codes(const Run &run, const uint8_t *group, int64_t column, int half) {
    const int64_t line = column % kBlock / 4;
    const uint8_t *lines = group + (column % run.group / kBlock * 2 + half) * kBits * 64;
    const int shift = (int)(column % 4) * 8 + (kBits == 4 && line >= 4 ? 4 : 0);
    return bits_of(load_bytes(lines + line % kBits * 64), shift, (1 << kBits) - 1);
  }

  // Sixteen rows of a column as floats.
  static Floats unpack(const Run &run, const uint8_t *panel, int64_t column, int half) {
    const uint8_t *group = panel + column / run.group * run.group_bytes;
    const GroupData data = Format::load(run, group, half);
    return add(mul(data.scales, to_float(codes(run, group, column, half))), Format::shift(data));
  }
};
