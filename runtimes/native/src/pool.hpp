// Threads that work through the phases of a forward. A phase ends when its units are done. No thread has to take part: one
// whose core is busy with something else delays only the units that it has claimed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace dsedge {

class Pool {
public:
  static constexpr int kBits = 20;
  static constexpr int64_t kMostUnits = (int64_t{1} << kBits) - 1; // what a phase can hold

  // Units begin … end - 1 of a phase, on one thread. It must not throw.
  using Work = std::function<void(int32_t phase, int32_t begin, int32_t end, int32_t thread)>;

  // The caller of `run` is one of the threads. Where the system refuses some of the others, the pool has fewer.
  // `phases`: how many a run has at most.
  Pool(int32_t threads, int32_t phases, Work work);
  ~Pool();
  Pool(const Pool &) = delete;

  int32_t threads() const { return threads_; }
  // Runs phases 0, 1, … of `units` units each, one after another. For one caller at a time. Throws
  // std::invalid_argument for more phases than there are, or more units than a phase can hold.
  void run(const std::vector<int32_t> &units);

private:
  // Epoch of the run (24 bits), units of the phase (20), units claimed (20). They are one word, so that a thread that still
  // works on an earlier run cannot claim units of this one.
  struct alignas(64) Phase {
    std::atomic<uint64_t> claim{0};
    std::atomic<int32_t> done{0};
  };

  void serve(int32_t thread);
  void take_part(uint64_t epoch, int32_t count, int32_t thread);
  bool finish(Phase &phase, uint64_t epoch, int32_t index, int32_t thread);

  int32_t threads_; // set before the first run, never after
  const Work work_;
  std::vector<Phase> phases_;
  std::atomic<uint64_t> start_{0}; // epoch (24 bits), count of phases
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

} // namespace dsedge
