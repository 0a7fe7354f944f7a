#include "attention_plan.hpp"

#include <algorithm>
#include <stdexcept>

namespace dsedge {

namespace {

void check(bool fine, const char *message) {
  if (!fine)
    throw std::invalid_argument(message);
}

// What a segment attends to, cut where spans begin; runs that are neighbours in position and slot become one.
std::vector<Piece> find_pieces(const RingView &view) {
  std::vector<Piece> pieces;
  for (const int64_t *run = view.runs; run < view.runs + 3 * view.count; run += 3)
    for (int64_t done = 0; done < run[2];) {
      const int64_t position = run[0] + done, slot = run[1] + done;
      const int64_t count = std::min(run[2] - done, kSpan - position % kSpan);
      Piece *last = pieces.empty() || position % kSpan == 0 ? nullptr : &pieces.back();
      if (last && last->position + last->count == position && last->slot + last->count == slot)
        last->count += count;
      else
        pieces.push_back({position, slot, count});
      done += count;
    }
  return pieces;
}

// How many pieces of at most `size` a count is cut into.
int64_t cuts(int64_t count, int64_t size) { return (count + size - 1) / size; }

bool last_is_apart(const std::vector<Piece> &pieces) {
  const Piece &last = pieces.back();
  const int64_t line = (last.slot + last.count - 1) / 16;
  return std::none_of(pieces.begin(), pieces.end(), [&](const Piece &piece) {
    return piece.position / kSpan != last.position / kSpan && piece.slot / 16 <= line &&
           line <= (piece.slot + piece.count - 1) / 16;
  });
}

} // namespace

void check_runs(const Segment &segment, const RingView &view, const RingShape &ring) {
  check(view.count > 0 && view.window > 0 && view.sinks >= 0, "forward: nothing to attend to");
  const int64_t end = segment.position + segment.count;
  int64_t at = 0;
  for (const int64_t *run = view.runs; run < view.runs + 3 * view.count; run += 3) {
    check(run[0] >= at && run[0] < end && run[2] > 0 && run[2] <= ring.slots && run[1] >= 0 && run[1] <= ring.slots - run[2],
          "forward: runs out of order, or of slots that are not there");
    check(run[0] <= segment.position || run[0] == at, "forward: new rows without a slot");
    at = run[0] + run[2];
    check(at <= end, "forward: positions behind the new ones");
  }
  check(at == end, "forward: new rows without a slot");
}

AttentionPlan plan_attention(const std::vector<Segment> &segments, const AttentionCut &cut,
                             const std::vector<int64_t> &bands, int32_t threads) {
  AttentionPlan plan;
  const int64_t kv_heads = cut.kv_heads;
  int64_t queries = cut.queries;
  const int64_t wished = 4 * threads; // tasks, at least: threads then end at about the same time
  int64_t rows = 0, tiles = 0;
  for (const Segment &segment : segments) {
    plan.pieces.push_back(find_pieces(segment.rings[static_cast<size_t>(cut.ring)]));
    rows += segment.count;
  }
  plan.apart = segments.size() == 1 && last_is_apart(plan.pieces[0]);
  if (bands.empty())
    queries = std::clamp<int64_t>(rows * kv_heads / wished, 1, queries);
  for (const Segment &segment : segments)
    tiles += cuts(segment.count, queries) * kv_heads;
  const int64_t parts_wished = bands.empty() ? std::max<int64_t>(1, wished / tiles) : 1; // of a tile
  for (size_t index = 0; index < segments.size(); ++index) {
    std::vector<int64_t> spans;
    for (const Piece &piece : plan.pieces[index])
      if (spans.empty() || spans.back() != piece.position / kSpan)
        spans.push_back(piece.position / kSpan);
    for (int64_t first = 0, count; first < segments[index].count; first += count) {
      count = segments[index].count - first;
      if (!bands.empty())
        count = std::min(count, *std::upper_bound(bands.begin(), bands.end(), segments[index].row + first) -
                                    segments[index].row - first);
      count = cuts(count, cuts(count, queries)); // of about equal size
      plan.queries = std::max(plan.queries, count);
      const int64_t last = (segments[index].position + first + count - 1) / kSpan;
      const int64_t visited = std::upper_bound(spans.begin(), spans.end(), last) - spans.begin();
      const int64_t parts = threads > 1 ? std::min(parts_wished, visited) : 1;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = visited * part / parts, end = visited * (part + 1) / parts;
        plan.tasks.push_back({static_cast<int32_t>(index), first, count, spans[static_cast<size_t>(begin)],
                              spans[static_cast<size_t>(end - 1)], static_cast<int32_t>(parts), plan.partials + begin,
                              plan.partials, visited, plan.merges});
      }
      if (parts > 1) {
        plan.partials += visited;
        ++plan.merges;
      }
    }
  }
  return plan;
}

} // namespace dsedge
