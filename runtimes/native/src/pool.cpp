#include "pool.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <system_error>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace dsedge {

namespace {

constexpr int kBits = Pool::kBits;
constexpr uint64_t kMask = Pool::kMostUnits;
constexpr uint64_t kEpochs = uint64_t{1} << 24;
constexpr int kPatience = 2000;                  // polls of a word before the thread yields its core
constexpr auto kAwake = std::chrono::milliseconds(1); // how long a worker polls for the next run before it sleeps

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t pack(uint64_t epoch, uint64_t units) { return epoch << (2 * kBits) | units << kBits; }

} // namespace

Pool::Pool(int32_t threads, int32_t phases, Work work)
    : threads_(threads), work_(std::move(work)), phases_(static_cast<size_t>(phases)) {
  workers_.reserve(static_cast<size_t>(threads - 1)); // may throw: there is no thread to join yet
  try {
    for (int32_t thread = 1; thread < threads; ++thread)
      workers_.emplace_back([this, thread] { serve(thread); });
  } catch (const std::system_error &) { // no more threads, or no memory for their stacks
  } catch (const std::bad_alloc &) {
  }
  threads_ = static_cast<int32_t>(workers_.size()) + 1;
}

Pool::~Pool() {
  stop_.store(true);
  start_.fetch_add(uint64_t{1} << kBits);
  start_.notify_all();
  for (std::thread &worker : workers_)
    worker.join();
}

void Pool::run(const std::vector<int32_t> &units) {
  if (units.size() > phases_.size())
    throw std::invalid_argument("pool: more phases than it was made for");
  for (int32_t count : units)
    if (count < 0 || count > kMostUnits)
      throw std::invalid_argument("pool: more units than a phase can hold");
  const uint64_t epoch = ((start_.load() >> kBits) + 1) % kEpochs;
  for (size_t i = 0; i < units.size(); ++i) {
    phases_[i].done.store(0, std::memory_order_relaxed);
    phases_[i].claim.store(pack(epoch, static_cast<uint64_t>(units[i])), std::memory_order_release);
  }
  start_.store(epoch << kBits | units.size(), std::memory_order_release);
  if (threads_ > 1)
    start_.notify_all();
  take_part(epoch, static_cast<int32_t>(units.size()), 0);
}

void Pool::serve(int32_t thread) {
  uint64_t seen = 0;
  for (;;) {
    auto until = std::chrono::steady_clock::now() + kAwake;
    for (int looks = 1; start_.load(std::memory_order_acquire) == seen; ++looks) {
      pause();
      if (looks % 64 == 0 && std::chrono::steady_clock::now() > until)
        start_.wait(seen, std::memory_order_acquire);
    }
    seen = start_.load(std::memory_order_acquire);
    if (stop_.load())
      return;
    take_part(seen >> kBits, static_cast<int32_t>(seen & kMask), thread);
  }
}

void Pool::take_part(uint64_t epoch, int32_t count, int32_t thread) {
  for (int32_t i = 0; i < count; ++i)
    if (!finish(phases_[static_cast<size_t>(i)], epoch, i, thread))
      return;
}

// Works on a phase until it is over. False: the run is over already, and another may have begun.
bool Pool::finish(Phase &phase, uint64_t epoch, int32_t index, int32_t thread) {
  for (int looks = 1;; ++looks) {
    uint64_t claim = phase.claim.load(std::memory_order_acquire);
    if (claim >> (2 * kBits) != epoch)
      return false;
    const uint64_t units = claim >> kBits & kMask, next = claim & kMask;
    if (next == units) {
      if (phase.done.load(std::memory_order_acquire) == static_cast<int32_t>(units))
        return true;
      pause();
      if (looks % kPatience == 0)
        std::this_thread::yield();
      continue;
    }
    // An equal share of what is left. Shares are large at first, since each one begins a new stream of weights, and small
    // at the end, so that threads finish at about the same time.
    const uint64_t share = std::max<uint64_t>(1, (units - next) / static_cast<uint64_t>(threads_));
    if (!phase.claim.compare_exchange_weak(claim, claim + share, std::memory_order_acq_rel))
      continue;
    work_(index, static_cast<int32_t>(next), static_cast<int32_t>(next + share), thread);
    phase.done.fetch_add(static_cast<int32_t>(share), std::memory_order_acq_rel);
  }
}

} // namespace dsedge
