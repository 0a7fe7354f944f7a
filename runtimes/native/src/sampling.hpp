// The choice of a token from logits, by the rule that edge/sampling.py states. edge/numpy_sampling.py is the oracle.
#pragma once

#include "kernels/kernels.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace dsedge {

// What applies to one answer.
struct SamplingRule {
  double temperature = 0, top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
  int64_t top_k = 0;
  uint64_t seed = 0;
  int64_t end = 0;            // logits from here on are of no token
  std::vector<int32_t> holes; // ids before `end` that have no token
  std::vector<int32_t> bias_ids;
  std::vector<double> bias;
};

// The tokens that a text has so far, each with how often it came.
class Distinct {
public:
  explicit Distinct(int64_t vocab) : counts_(static_cast<size_t>(vocab)), listed_(static_cast<size_t>(vocab)) {}
  void add(int32_t token);
  void remove(int32_t token); // one that was added
  const std::vector<int32_t> &ids() const { return ids_; } // some may have a count of 0 by now
  uint32_t count(int32_t token) const { return counts_[static_cast<size_t>(token)]; }

private:
  std::vector<uint32_t> counts_; // by id
  std::vector<bool> listed_;     // by id: whether it is in ids_
  std::vector<int32_t> ids_;
};

// The number in [0, 1) of a draw: Philox4x32-10 (Salmon et al., SC 2011).
double uniform(uint64_t seed, uint64_t draw);

// The state of one answer. Throws std::invalid_argument for ids that the rule does not have.
class Sampler {
public:
  Sampler(SamplingRule rule, const Kernels &kernels);
  int64_t end() const { return rule_.end; }
  uint64_t draws() const { return draws_; }
  void prompt(std::span<const int32_t> tokens);
  void accept(int32_t token);
  // Keeps the first `count` accepted tokens, and as many draws.
  void truncate(int64_t count);
  // The next token for `end` logits. `allowed`: a byte an id, 0 for no candidate; or nullptr. A negative result says
  // that logit -1 - result is the highest and not finite, or NaN.
  int32_t sample(const float *logits, const uint8_t *allowed);

private:
  struct Candidates {
    std::vector<int32_t> ids;
    std::vector<double> weights, sums; // running sums of the weights
  };

  void check(int32_t token) const;
  const float *adjust(const float *logits, const uint8_t *allowed);
  int32_t draw(const float *logits, float top, double u);
  void gather(const float *logits, float top, double goal, std::span<const double> floors);
  size_t pick(double total, double u) const;
  double exact_sum(const float *logits, float top) const;
  double weight(float logit, float top) const;

  SamplingRule rule_;
  const Kernels &kernels_;
  bool repeats_, counts_;
  Distinct seen_, answer_;
  std::vector<int32_t> accepted_;
  std::vector<float> adjusted_;
  std::vector<int32_t> found_;
  std::vector<int64_t> keys_;
  Candidates candidates_;
  uint64_t draws_ = 0;
};

} // namespace dsedge
