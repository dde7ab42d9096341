#include "plan.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "errors.hpp"

namespace paradecode {
namespace {

// A token that rows may see beside the prefix.
struct Extra {
  std::int32_t position;
  Slot slot;
};

class SpanPlanner {
 public:
  SpanPlanner(const SpanInput& input, std::size_t index, const PlanLimits& limits)
      : in_(input),
        name_("spans[" + std::to_string(index) + "]."),
        limits_(limits),
        table_{limits.sliding_window, 0, input.pages, input.page_count} {
    for (const PageTable& table : input.windows)
      if (table.window == limits.sliding_window) table_ = table;
  }

  void check(const std::vector<LayerPart>& layers) const {
    if (in_.rows == 0) throw InvalidInput(name_ + "positions", in_.rows, "give at least one row");
    for (std::int64_t i = 0; i < table_.count; ++i)
      within(table_.pages == in_.pages ? "pages" : "windows", table_.pages[i], limits_.pages,
             "reserved pages");
    if (table_.first < 0 || slot_count() > std::int64_t{1} << 30)
      throw InvalidInput(name_ + "windows", table_.first, "give the first page that is there");
    for (std::int64_t k = 0; k < in_.rows; ++k) {
      if (k < in_.rows - in_.given_rows)
        within("tokens", in_.tokens[k], limits_.vocab_size, "the vocabulary");
      within("positions", in_.positions[k], limits_.context_length, "the context length");
      if (in_.slots[k] != -1) within("slots", in_.slots[k], slot_count(), "the page table");
    }
    if (in_.visible == nullptr && (in_.context < 0 || in_.context > slot_count()))
      throw InvalidInput(
          name_ + "context", in_.context,
          "give at most the " + std::to_string(slot_count()) + " slots of the page table");
    for (std::int64_t i = 0; i < in_.visible_count; ++i)
      within("visible", in_.visible[i], slot_count(), "the page table");
    for (std::int64_t i = 0; i < in_.tail_count; ++i) {
      within("tail", in_.tail[i], slot_count(), "the page table");
      within("tail_positions", in_.tail_positions[i], limits_.context_length, "the context length");
    }
    for (std::int64_t i = 0; i < in_.logit_count; ++i)
      within("logits", in_.logits[i], in_.rows, "the rows of the span");
    for (std::int64_t i = 0; i < in_.attention_count; ++i)
      within("attention", in_.attention[i], in_.rows, "the rows of the span");
    if (in_.attention_count > 0 && in_.visible != nullptr &&
        !std::is_sorted(in_.visible, in_.visible + in_.visible_count))
      throw InvalidInput(name_ + "visible", std::monostate(),
                         "give the slots in ascending order where attention weights are asked for");
    for (const int layer : in_.hidden) {
      within("hidden", layer, limits_.layers, "the layers of the model");
      if (std::none_of(layers.begin(), layers.end(),
                       [&](const LayerPart& part) { return part.layer == layer; }))
        throw InvalidInput(name_ + "hidden", layer, "ask for layers that this forward runs");
    }
  }

  Slot resolve(std::int32_t slot) const {
    const std::int64_t page = slot / kPage - table_.first;
    if (page < 0)
      throw InvalidInput(name_ + "windows", std::int64_t{slot},
                         "read and store slots from " + std::to_string(table_.first * kPage) +
                             " on: the window of " + std::to_string(table_.window) +
                             " has passed the rest");
    return {table_.pages[page], static_cast<std::uint8_t>(slot % kPage), false};
  }

  const std::string& name() const { return name_; }

  // Fills `out`; `slots` are those of the span's rows, scratch included.
  void plan(const Slot* slots, SpanPlan& out) const {
    std::vector<Extra> extras;
    std::vector<std::int32_t> owner;  // column of the mask; -1 for a token that every row sees
    const bool listed = in_.visible != nullptr;
    const bool ascending = !listed || std::is_sorted(in_.visible, in_.visible + in_.visible_count);
    if (listed && limits_.sliding_window > 0 && !ascending) {
      // The window cuts a prefix only from its front: an unordered one joins the other tokens.
      const std::int64_t unseen = std::int64_t{oldest_position()} - limits_.sliding_window;
      for (std::int64_t i = 0; i < in_.visible_count; ++i) {
        // A page that no row sees need not be there.
        const std::int32_t slot = in_.visible[i];
        const bool gone = slot <= unseen && slot / kPage < table_.first;
        extras.push_back({slot, gone ? Slot{table_.pages[0], 0, false} : resolve(slot)});
        owner.push_back(-1);
      }
    } else {
      plan_prefix(out);
    }
    for (std::int64_t i = 0; i < in_.tail_count; ++i) {
      extras.push_back({in_.tail_positions[i], resolve(in_.tail[i])});
      owner.push_back(static_cast<std::int32_t>(i));
    }
    for (std::int64_t k = 0; k < in_.rows; ++k) {
      extras.push_back({in_.positions[k], slots[k]});
      owner.push_back(static_cast<std::int32_t>(in_.tail_count + k));
    }
    std::vector<std::int32_t> order(extras.size());
    std::iota(order.begin(), order.end(), 0);
    const auto earlier = [&](std::int32_t a, std::int32_t b) {
      return extras[static_cast<std::size_t>(a)].position <
             extras[static_cast<std::size_t>(b)].position;
    };
    if (!std::is_sorted(order.begin(), order.end(), earlier))
      std::stable_sort(order.begin(), order.end(), earlier);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Extra& extra = extras[static_cast<std::size_t>(order[i])];
      append(out.extra, extra.slot, static_cast<std::int32_t>(i));
      out.extra_positions.push_back(extra.position);
    }
    plan_rows(extras, owner, order, out);
    out.view.prefix = out.prefix.data();
    out.view.prefix_runs = static_cast<int>(out.prefix.size());
    out.view.extra = out.extra.data();
    out.view.extra_runs = static_cast<int>(out.extra.size());
    out.view.extra_length = static_cast<std::int32_t>(extras.size());
    out.view.rows = out.row_views.data();
    out.view.prefix_positions = in_.visible;  // A cached token's slot is its position.
    out.view.extra_positions = out.extra_positions.data();
  }

 private:
  std::int64_t slot_count() const { return (table_.first + table_.count) * kPage; }

  // Of the row that sees furthest back; all rows of a canvas do so.
  std::int32_t oldest_position() const {
    return *std::min_element(in_.positions, in_.positions + (in_.canvas ? 1 : in_.rows));
  }

  void within(const char* field, std::int64_t value, std::int64_t limit, const char* what) const {
    if (value < 0 || value >= limit)
      throw InvalidInput(
          name_ + field, value,
          "stay within " + std::string(what) + " (0 to " + std::to_string(limit - 1) + ")");
  }

  static void append(std::vector<Run>& runs, const Slot& slot, std::int32_t ordinal) {
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.page == slot.page && last.scratch == slot.scratch &&
          last.first + last.count == slot.row) {
        ++last.count;
        return;
      }
    }
    runs.push_back({slot.page, ordinal, slot.row, 1, slot.scratch});
  }

  // What no row sees is left out: a window has passed it, and its pages may be gone.
  void plan_prefix(SpanPlan& out) const {
    const std::int64_t length = in_.visible != nullptr ? in_.visible_count : in_.context;
    out.view.prefix_length = static_cast<std::int32_t>(length);
    const std::int32_t start =
        limits_.sliding_window == 0 ? 0 : prefix_start(oldest_position(), out.view.prefix_length);
    if (in_.visible != nullptr) {
      for (std::int32_t i = start; i < out.view.prefix_length; ++i)
        append(out.prefix, resolve(in_.visible[i]), i);
      return;
    }
    for (std::int32_t at = start / kPage * kPage; at < out.view.prefix_length; at += kPage)
      out.prefix.push_back({resolve(at).page, at, 0,
                            static_cast<std::uint8_t>(std::min(kPage, out.view.prefix_length - at)),
                            false});
  }

  // First token of the prefix that a row at `position` sees.
  std::int32_t prefix_start(std::int32_t position, std::int32_t length) const {
    if (limits_.sliding_window == 0) return 0;
    const std::int32_t oldest = position - limits_.sliding_window + 1;
    if (in_.visible == nullptr) return std::clamp(oldest, 0, length);
    return static_cast<std::int32_t>(std::lower_bound(in_.visible, in_.visible + length, oldest) -
                                     in_.visible);
  }

  void plan_rows(const std::vector<Extra>& extras, const std::vector<std::int32_t>& owner,
                 const std::vector<std::int32_t>& order, SpanPlan& out) const {
    const auto total = static_cast<std::int32_t>(extras.size());
    out.row_views.resize(static_cast<std::size_t>(in_.rows));
    if (in_.mask == nullptr && limits_.sliding_window == 0 &&
        std::is_sorted(order.begin(), order.end())) {
      for (std::int32_t k = 0; k < static_cast<std::int32_t>(in_.rows); ++k) {
        const std::int32_t count = total - static_cast<std::int32_t>(in_.rows) + k + 1;
        out.row_views[static_cast<std::size_t>(k)] = {nullptr, count, count, count, 0};
      }
      return;
    }
    std::vector<std::size_t> starts(static_cast<std::size_t>(in_.rows));
    std::vector<std::int32_t> seen;
    for (std::int64_t k = 0; k < in_.rows; ++k) {
      // All rows of a canvas see as far back as its first one.
      const std::int32_t position = in_.positions[in_.canvas ? 0 : k];
      const std::uint8_t* mask =
          in_.mask == nullptr ? nullptr : in_.mask + k * (in_.tail_count + in_.rows);
      const auto sees = [&](std::int32_t token) {
        const std::int32_t column = owner[static_cast<std::size_t>(token)];
        if (limits_.sliding_window > 0 &&
            position - extras[static_cast<std::size_t>(token)].position >= limits_.sliding_window)
          return false;
        if (column < 0) return true;
        return mask == nullptr ? column <= in_.tail_count + k : mask[column] != 0;
      };
      RowView& row = out.row_views[static_cast<std::size_t>(k)];
      row.start = prefix_start(position, out.view.prefix_length);
      seen.clear();
      for (std::int32_t i = 0; i < total; ++i)
        if (sees(order[static_cast<std::size_t>(i)])) seen.push_back(i);
      row.count = static_cast<std::int32_t>(seen.size());
      while (row.lead < row.count && seen[static_cast<std::size_t>(row.lead)] == row.lead)
        ++row.lead;
      row.reach = seen.empty() ? 0 : seen.back() + 1;
      starts[static_cast<std::size_t>(k)] = out.lists.size();
      if (row.lead < row.count) out.lists.insert(out.lists.end(), seen.begin(), seen.end());
    }
    for (std::size_t k = 0; k < out.row_views.size(); ++k)
      if (out.row_views[k].lead < out.row_views[k].count)
        out.row_views[k].list = out.lists.data() + starts[k];
  }

  const SpanInput& in_;
  const std::string name_;
  const PlanLimits& limits_;
  PageTable table_;
};

// The slots of a page that this forward writes.
using Written = std::unordered_map<std::int32_t, std::uint32_t>;

void check_unwritten(const Written& written, const std::vector<Run>& runs,
                     const std::string& name) {
  for (const Run& run : runs) {
    if (run.scratch) continue;
    const auto found = written.find(run.page);
    if (found == written.end()) continue;
    const std::uint32_t read = ((1U << run.count) - 1U) << run.first;
    if ((found->second & read) != 0)
      throw InvalidInput(name + "slots", std::int64_t{run.page} * kPage + run.first,
                         "no row may be stored where a span of this forward reads the cache; "
                         "leave the slot out of context, visible and tail");
  }
}

}  // namespace

Plan::Plan(const std::vector<SpanInput>& inputs, const std::vector<LayerPart>& layers,
           const PlanLimits& limits) {
  Written written;
  std::vector<SpanPlanner> planners;
  planners.reserve(inputs.size());
  int unstored = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const SpanInput& in = inputs[i];
    const SpanPlanner& planner = planners.emplace_back(in, i, limits);
    planner.check(layers);
    for (std::int64_t k = 0; k < in.rows; ++k) {
      positions.push_back(in.positions[k]);
      if (in.slots[k] == -1) {
        slots.push_back({unstored / kPage, static_cast<std::uint8_t>(unstored % kPage), true});
        ++unstored;
        continue;
      }
      const Slot slot = planner.resolve(in.slots[k]);
      std::uint32_t& page = written[slot.page];
      if ((page >> slot.row & 1U) != 0)
        throw InvalidInput(planner.name() + "slots", in.slots[k], "give every row its own slot");
      page |= 1U << slot.row;
      slots.push_back(slot);
    }
    for (std::int64_t r = 0; r < in.logit_count; ++r) logit_rows.push_back(rows + in.logits[r]);
    rows += static_cast<int>(in.rows);
  }
  scratch_pages = (unstored + kPage - 1) / kPage;

  spans.resize(inputs.size());
  int first_row = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SpanPlan& span = spans[i];
    span.first_row = first_row;
    span.rows = static_cast<int>(inputs[i].rows);
    planners[i].plan(slots.data() + first_row, span);
    first_row += span.rows;
    most_extra = std::max(most_extra, span.view.extra_length);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_unwritten(written, spans[i].prefix, planners[i].name());
    const SpanInput& in = inputs[i];
    std::vector<Run> tail;
    for (std::int64_t t = 0; t < in.tail_count; ++t) {
      const Slot slot = planners[i].resolve(in.tail[t]);
      tail.push_back({slot.page, 0, slot.row, 1, false});
    }
    check_unwritten(written, tail, planners[i].name());
  }
}

const SpanPlan& Plan::span_of(int row) const {
  const auto behind =
      std::upper_bound(spans.begin(), spans.end(), row,
                       [](int at, const SpanPlan& span) { return at < span.first_row; });
  return *(behind - 1);
}

}  // namespace paradecode
