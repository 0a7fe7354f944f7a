// Which slots the queries of a forward visit, in order of position, and how that is cut into tasks.
#pragma once

#include "kv_pool.hpp"

#include <vector>

namespace dsedge {

// What the queries of a segment attend to in one ring: runs of position, slot and count, [count][3], by ascending position.
// The new rows are the last ones. A query sees `window` positions, its own included, and the first `sinks` ones.
struct RingView {
  const int64_t *runs;
  int64_t count, window, sinks;
  // [new rows][rows()], to which the attention that each query pays to each row is added; or nullptr.
  float *attention = nullptr;

  // How many rows the runs have together.
  int64_t rows() const {
    int64_t sum = 0;
    for (const int64_t *run = runs; run < runs + 3 * count; run += 3)
      sum += run[2];
    return sum;
  }

  // The slot of a new row's position.
  int64_t slot_of(int64_t position) const {
    const int64_t *run = runs + 3 * (count - 1);
    while (run[0] > position)
      run -= 3;
    return run[1] + position - run[0];
  }
};

struct Segment {
  int64_t row, count, position; // rows row … row + count - 1 of the activations are from `position` on
  std::vector<RingView> rings;
};

// Throws std::invalid_argument for runs that contradict themselves, name slots that the pool does not have, or do not end
// in the segment's new rows.
void check_runs(const Segment &segment, const RingView &view, const RingShape &ring);

// Queries first … first + count - 1 of a segment over some of its spans. Partial results are numbered the same for all
// kv heads.
struct AttentionTask {
  int32_t segment;
  int64_t first, count;
  int64_t first_span, last_span;
  int32_t parts;           // how many tasks share these queries: more than one leave each span's result to a merge
  int64_t part_at;         // index of this task's first partial result
  int64_t spans_at, spans; // partial results of all tasks that share the queries
  int64_t merge_at;        // index of their counter
};

struct AttentionPlan {
  std::vector<std::vector<Piece>> pieces; // of each segment
  std::vector<AttentionTask> tasks;       // for each kv head, in the order of rows
  int64_t partials = 0, merges = 0;       // for each kv head
  int64_t queries = 0;                    // of the largest task
  // Of one segment: no other span than the last reads the line of slots that the last position lies in.
  bool apart = false;
};

// How the attention of some layers is cut.
struct AttentionCut {
  int32_t ring, kv_heads;
  int64_t queries; // of a task, at most

  bool operator==(const AttentionCut &) const = default;
};

// `bands`: rows at which tasks end, each of which then has all its spans to itself, or none: then spans are spread over
// tasks so that all threads have some. Runs have been checked.
AttentionPlan plan_attention(const std::vector<Segment> &segments, const AttentionCut &cut,
                             const std::vector<int64_t> &bands, int32_t threads);

} // namespace dsedge
