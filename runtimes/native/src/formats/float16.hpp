// float16: numbers, multiplied by float activations.
#pragma once

struct Float16 : FloatWeights<Float16, uint16_t> {
  static constexpr const char *kName = "float16";
  static Floats sixteen(const uint16_t *numbers) { return load_half(numbers); }
};
