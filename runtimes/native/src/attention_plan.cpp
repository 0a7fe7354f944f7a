#include "attention_plan.hpp"

#include <algorithm>
#include <stdexcept>

namespace dsedge {

namespace {

void check(bool fine, const char *message) {
  if (!fine)
    throw std::invalid_argument(message);
}

// Appends positions that lie in neighbouring slots, cut where spans begin.
void append(std::vector<Piece> &pieces, int64_t position, int64_t slot) {
  if (!pieces.empty()) {
    Piece &last = pieces.back();
    if (last.position + last.count == position && last.slot + last.count == slot && position % kSpan) {
      ++last.count;
      return;
    }
  }
  pieces.push_back({position, slot, 1});
}

// Held positions that any of the segment's queries sees, then the new ones.
std::vector<Piece> find_pieces(const Segment &segment, const RingView &view, const RingShape &ring) {
  std::vector<Piece> seen;
  for (int64_t slot = 0; slot < view.filled; ++slot) {
    const int64_t position = view.held[slot];
    check(position < segment.position, "forward: a held position is not before the new ones");
    if (position >= 0 && (segment.position - position < ring.window || position < ring.sinks))
      append(seen, position, slot);
  }
  const auto before = [](const Piece &a, const Piece &b) { return a.position < b.position; };
  if (!std::is_sorted(seen.begin(), seen.end(), before))
    std::sort(seen.begin(), seen.end(), before);
  for (size_t i = 1; i < seen.size(); ++i)
    check(seen[i - 1].position + seen[i - 1].count <= seen[i].position, "forward: a position is held twice");
  for (int64_t i = 0; i < segment.count; ++i)
    append(seen, segment.position + i, view.filled + i);
  return seen;
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

AttentionPlan plan_attention(const std::vector<Segment> &segments, const AttentionCut &cut, const RingShape &ring,
                             const std::vector<int64_t> &bands, int32_t threads) {
  AttentionPlan plan;
  const int64_t kv_heads = cut.kv_heads;
  int64_t queries = cut.queries;
  const int64_t wished = 4 * threads; // tasks, at least: threads then end at about the same time
  int64_t rows = 0, tiles = 0;
  for (const Segment &segment : segments) {
    plan.pieces.push_back(find_pieces(segment, segment.rings[static_cast<size_t>(cut.ring)], ring));
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
