#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace dsedge {

namespace {

// As in edge/numpy_sampling.py: where candidates are looked for first, and how far a sum of floats may be off.
constexpr double kShares[] = {0x1p-12, 0x1p-18, 0.0};
constexpr double kFractions[] = {0x1p-8, 0x1p-13, 0x1p-20, 0x1p-30, 0.0};
constexpr double kRough = 1e-4;
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Ascending keys are descending logits, ties by ascending id. A negative zero equals a positive one.
int64_t key_of(float logit, int32_t id) {
  const float value = logit + 0.0f;
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const int32_t rising = bits ^ ((bits >> 31) & 0x7fffffff);
  return static_cast<int64_t>(id) - static_cast<int64_t>(rising) * (int64_t{1} << 32);
}

} // namespace

double uniform(uint64_t seed, uint64_t draw) {
  uint32_t x[4] = {static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t{0xD2511F53} * x[0], odd = uint64_t{0xCD9E8D57} * x[2];
    const uint32_t next[4] = {static_cast<uint32_t>(odd >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(odd),
                              static_cast<uint32_t>(even >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(even)};
    std::memcpy(x, next, sizeof x);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return static_cast<double>((uint64_t{x[0]} << 32 | x[1]) >> 11) * 0x1p-53;
}

void Distinct::add(int32_t token) {
  const size_t id = static_cast<size_t>(token);
  if (!listed_[id])
    ids_.push_back(token);
  listed_[id] = true;
  ++counts_[id];
}

void Distinct::remove(int32_t token) { --counts_[static_cast<size_t>(token)]; }

Sampler::Sampler(SamplingRule rule, const Kernels &kernels)
    : rule_(std::move(rule)), kernels_(kernels), repeats_(rule_.repetition != 1),
      counts_(rule_.presence != 0 || rule_.frequency != 0), seen_(repeats_ ? rule_.end : 0),
      answer_(counts_ ? rule_.end : 0) {
  if (rule_.end < 1 || rule_.end > std::numeric_limits<int32_t>::max())
    throw std::invalid_argument("sampling: a vocabulary of no possible size");
  if (rule_.bias.size() != rule_.bias_ids.size())
    throw std::invalid_argument("sampling: as many biases as ids are needed");
  for (const std::vector<int32_t> *ids : {&rule_.holes, &rule_.bias_ids})
    for (int32_t id : *ids)
      check(id);
}

void Sampler::check(int32_t token) const {
  if (token < 0 || token >= rule_.end)
    throw std::invalid_argument("sampling: a token outside of the vocabulary");
}

void Sampler::prompt(std::span<const int32_t> tokens) {
  if (!repeats_)
    return;
  for (int32_t token : tokens)
    check(token);
  for (int32_t token : tokens)
    seen_.add(token);
}

void Sampler::accept(int32_t token) {
  check(token);
  accepted_.push_back(token);
  if (repeats_)
    seen_.add(token);
  if (counts_)
    answer_.add(token);
}

void Sampler::truncate(int64_t count) {
  if (count < 0 || count > static_cast<int64_t>(accepted_.size()))
    throw std::invalid_argument("sampling: more tokens than were accepted");
  for (; static_cast<int64_t>(accepted_.size()) > count; accepted_.pop_back()) {
    if (repeats_)
      seen_.remove(accepted_.back());
    if (counts_)
      answer_.remove(accepted_.back());
  }
  draws_ = std::min(draws_, static_cast<uint64_t>(count));
}

const float *Sampler::adjust(const float *logits, const uint8_t *allowed) {
  if (!repeats_ && !counts_ && rule_.holes.empty() && rule_.bias.empty() && !allowed)
    return logits;
  adjusted_.assign(logits, logits + rule_.end);
  const auto change = [&](int32_t id, const auto &rule) {
    float &logit = adjusted_[static_cast<size_t>(id)];
    logit = static_cast<float>(rule(static_cast<double>(logit)));
  };
  for (int32_t id : seen_.ids())
    if (seen_.count(id))
      change(id, [&](double l) { return l > 0 ? l / rule_.repetition : l * rule_.repetition; });
  for (int32_t id : answer_.ids())
    if (const uint32_t count = answer_.count(id))
      change(id, [&](double l) { return l - rule_.presence - rule_.frequency * count; });
  for (int32_t id : rule_.holes)
    adjusted_[static_cast<size_t>(id)] = static_cast<float>(-kInfinity);
  for (size_t n = 0; n < rule_.bias.size(); ++n)
    change(rule_.bias_ids[n], [&](double l) { return l + rule_.bias[n]; });
  if (allowed)
    for (int64_t id = 0; id < rule_.end; ++id)
      if (!allowed[id])
        adjusted_[static_cast<size_t>(id)] = static_cast<float>(-kInfinity);
  return adjusted_.data();
}

int32_t Sampler::sample(const float *given, const uint8_t *allowed) {
  const float *logits = adjust(given, allowed), *stop = logits + rule_.end;
  const float top = kernels_.largest(logits, rule_.end);
  const float *best = std::isnan(top) ? std::find_if(logits, stop, [](float x) { return std::isnan(x); })
                                      : std::find(logits, stop, top);
  const int32_t id = static_cast<int32_t>(best - logits);
  if (!std::isfinite(top))
    return -1 - id;
  if (rule_.temperature == 0)
    return id;
  return draw(logits, top, uniform(rule_.seed, draws_++));
}

double Sampler::weight(float logit, float top) const {
  return std::exp((static_cast<double>(logit) - static_cast<double>(top)) / rule_.temperature);
}

double Sampler::exact_sum(const float *logits, float top) const {
  double total = 0;
  for (int64_t id = 0; id < rule_.end; ++id)
    total += weight(logits[id], top);
  return total;
}

int32_t Sampler::draw(const float *logits, float top, double u) {
  if (rule_.top_k || (rule_.top_p == 1 && rule_.min_p > 0)) { // these need no sum over all weights
    const double under_min_p[] = {rule_.min_p / 2, 0.0};
    gather(logits, top, kInfinity, rule_.top_k ? std::span<const double>(kFractions) : std::span<const double>(under_min_p));
    return candidates_.ids[pick(candidates_.sums.back(), u)];
  }
  const float inverse = static_cast<float>(1 / std::max(rule_.temperature, 1e-30));
  const double about = kernels_.exponential_sum(logits, rule_.end, top, inverse);
  const double low = about * (1 - kRough), high = about * (1 + kRough);
  double floors[std::size(kShares)];
  for (size_t n = 0; n < std::size(kShares); ++n)
    floors[n] = std::min(1.0, about * kShares[n]);
  gather(logits, top, (rule_.top_p < 1 ? rule_.top_p : u) * high, floors);
  size_t chosen = pick(low, u);
  if (chosen != pick(high, u))
    chosen = pick(exact_sum(logits, top), u);
  return candidates_.ids[chosen];
}

// The heaviest candidates, at most top_k: down to the first of the falling `floors`, the last of which is 0, that leaves as
// many as top_k; or, without it, so many that their weights sum to more than `goal`, or all that are not under min_p.
void Sampler::gather(const float *logits, float top, double goal, std::span<const double> floors) {
  Candidates &c = candidates_;
  found_.resize(static_cast<size_t>(rule_.end));
  for (const double floor : floors) {
    const double lowest = floor > 0 ? top + rule_.temperature * std::log(floor) : -kInfinity;
    const float least = static_cast<float>(std::max(static_cast<double>(kLowest), lowest));
    const int64_t count = kernels_.at_least(logits, rule_.end, least, found_.data());
    if (count < rule_.top_k && floor > 0)
      continue;
    keys_.clear();
    for (int64_t n = 0; n < count; ++n)
      keys_.push_back(key_of(logits[found_[static_cast<size_t>(n)]], found_[static_cast<size_t>(n)]));
    const size_t kept = static_cast<size_t>(rule_.top_k ? std::min(rule_.top_k, count) : count);
    const auto end = keys_.begin() + static_cast<std::ptrdiff_t>(kept);
    if (end != keys_.end())
      std::nth_element(keys_.begin(), end, keys_.end());
    std::sort(keys_.begin(), end);
    c.ids.clear();
    c.weights.clear();
    c.sums.clear();
    double sum = 0;
    for (size_t n = 0; n < kept; ++n) {
      c.ids.push_back(static_cast<int32_t>(keys_[n] & 0xffffffff));
      c.weights.push_back(weight(logits[c.ids.back()], top));
      c.sums.push_back(sum += c.weights.back());
    }
    if (rule_.top_k || sum > goal || std::exp((static_cast<double>(least) - top) / rule_.temperature) < rule_.min_p)
      return;
  }
}

// Truncation by top_p and min_p, then the draw; `total` is the sum that top_k left.
size_t Sampler::pick(double total, double u) const {
  const Candidates &c = candidates_;
  size_t count = c.sums.size();
  const auto until = [&](const auto &end) { return static_cast<size_t>(end); };
  if (rule_.top_p < 1)
    count = std::min(count, until(std::lower_bound(c.sums.begin(), c.sums.end(), rule_.top_p * total) - c.sums.begin()) + 1);
  if (rule_.min_p > 0) // weights fall
    count = std::min(count, until(std::partition_point(c.weights.begin(), c.weights.end(),
                                                       [&](double w) { return w >= rule_.min_p; }) -
                                  c.weights.begin()));
  if (rule_.top_p < 1 || rule_.min_p > 0)
    total = c.sums[count - 1];
  return std::min(until(std::upper_bound(c.sums.begin(), c.sums.end(), u * total) - c.sums.begin()), count - 1);
}

} // namespace dsedge
