// float32: numbers, multiplied by float activations.
#pragma once

struct Float32 : FloatWeights<Float32, float> {
  static constexpr const char *kName = "float32";
  static Floats sixteen(const float *numbers) { return load(numbers); }
};
