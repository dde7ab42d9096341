#include "states.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "errors.hpp"

namespace paradecode {

StateStore::StateStore(const ModelShape& shape) {
  for (int layer = 0; layer < shape.layers(); ++layer)
    for (const int kind : shape.layer(layer).states) {
      const StateShape& own = shape.states[static_cast<std::size_t>(kind)];
      Part& part = parts_.emplace_back();
      part.record_numbers = own.record_numbers();
      part.state_numbers = own.state_numbers();
    }
}

void StateStore::reserve(std::int64_t record_pages, std::int64_t slots) {
  for (Part& part : parts_) {
    part.records = Mapping(static_cast<std::size_t>(record_pages * kPage * part.record_numbers) *
                           sizeof(float));
    part.states = Mapping(static_cast<std::size_t>(slots * part.state_numbers) * sizeof(float));
  }
  record_pages_ = record_pages;
  slots_ = slots;
}

void StateStore::copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count) {
  std::vector<float> held;
  for (int part = 0; part < static_cast<int>(parts_.size()); ++part) {
    const auto size =
        static_cast<std::size_t>(parts_[static_cast<std::size_t>(part)].record_numbers);
    held.resize(size * static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(record(part, source[i]), size, held.data() + static_cast<std::size_t>(i) * size);
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(held.data() + static_cast<std::size_t>(i) * size, size, record(part, target[i]));
  }
}

namespace {

// What all spans of a forward read and write.
struct Places {
  std::set<std::int64_t> read_rows, written_rows, read_slots, written_slots;
};

class LineagePlanner {
 public:
  LineagePlanner(const SpanInput& input, std::size_t index, const StateStore& store)
      : in_(input),
        name_("spans[" + std::to_string(index) + "]."),
        store_(store),
        base_(input.states.base) {}

  void plan(SpanLineage& out, Places& places) {
    check();
    known_ = in_.context - base_ * kPage;
    out.rows = static_cast<int>(in_.rows);
    out.state = in_.states.state;
    if (out.state >= 0) places.read_slots.insert(out.state);
    for (std::int64_t slot = base_ * kPage; slot < in_.context; ++slot) read(slot, out, places);
    for (std::int64_t t = 0; t < in_.tail_count; ++t) read(in_.tail[t], out, places);
    for (std::int64_t k = 0; k < in_.rows; ++k) {
      out.targets.push_back(in_.slots[k] < 0 ? -1 : record_row(in_.slots[k]));
      if (out.targets.back() >= 0 && !places.written_rows.insert(out.targets.back()).second)
        throw InvalidInput(name_ + "slots", in_.slots[k], "give every row its own record");
    }
    out.order.resize(static_cast<std::size_t>(in_.rows));
    std::iota(out.order.begin(), out.order.end(), 0);
    std::stable_sort(out.order.begin(), out.order.end(), [&](std::int32_t a, std::int32_t b) {
      return in_.positions[a] < in_.positions[b];
    });
    for (std::int64_t k = 0; k < in_.rows; ++k) add_path(k, out);
    out.path_at.push_back(static_cast<std::int64_t>(out.paths.size()));
    check_parents(out);
    out.starts.emplace_back();
    out.start.resize(static_cast<std::size_t>(in_.rows));
    for (const std::int32_t row : out.order)
      out.start[static_cast<std::size_t>(row)] =
          start_of(out.path(row), static_cast<int>(in_.positions[row] / kPage - base_), out);
    std::stable_sort(out.order.begin(), out.order.end(), [&](std::int32_t a, std::int32_t b) {
      return out.start[static_cast<std::size_t>(a)] < out.start[static_cast<std::size_t>(b)];
    });
    add_writes(out, places);
  }

 private:
  void check() const {
    if (in_.visible != nullptr || in_.canvas)
      throw InvalidInput(name_ + (in_.canvas ? "denoise" : "visible"), "chosen slots",
                         "layers with a state see every row before a row, from left to right");
    const StateInput& given = in_.states;
    for (const std::int32_t page : given.records)
      if (page < -1 || page >= store_.record_rows() / kPage)
        throw InvalidInput(name_ + "records", std::int64_t{page}, "name reserved pages, or -1");
    if (given.first < 0 || base_ < 0 || base_ > in_.context / kPage)
      throw InvalidInput(name_ + "base", base_, "name a page that begins within the context");
    if (given.state < -1 || given.state >= store_.slots() || (given.state < 0) != (base_ == 0))
      throw InvalidInput(name_ + "state", given.state, "give a slot, and -1 for page 0 alone");
    if (!given.given && (in_.context > 0 || in_.tail_count > 0))
      throw InvalidInput(name_ + "states", std::monostate(), "rows behind cached rows need them");
  }

  // Where the record of a slot lies, or -1.
  std::int64_t record_row(std::int64_t slot) const {
    const std::int64_t page = slot / kPage - in_.states.first;
    if (page < 0 || page >= static_cast<std::int64_t>(in_.states.records.size())) return -1;
    const std::int64_t found = in_.states.records[static_cast<std::size_t>(page)];
    return found < 0 ? -1 : found * kPage + slot % kPage;
  }

  void read(std::int64_t slot, SpanLineage& out, Places& places) const {
    out.cached.push_back(record_row(slot));
    if (out.cached.back() < 0)
      throw InvalidInput(name_ + "records", slot, "all cached rows that are read have records");
    places.read_rows.insert(out.cached.back());
  }

  void add_path(std::int64_t row, SpanLineage& out) const {
    const std::int64_t position = in_.positions[row];
    const auto beyond = static_cast<std::int32_t>(known_);
    out.path_at.push_back(static_cast<std::int64_t>(out.paths.size()));
    for (std::int32_t i = 0; i < beyond; ++i) out.paths.push_back(i);
    const auto begin = static_cast<std::ptrdiff_t>(out.paths.size());
    const std::int64_t extras = in_.tail_count + in_.rows;
    const auto at = [&](std::int32_t column) {
      const std::int64_t i = column - known_;
      return std::int64_t{i < in_.tail_count ? in_.tail_positions[i]
                                             : in_.positions[i - in_.tail_count]};
    };
    for (std::int64_t i = 0; i < extras; ++i) {
      const bool seen =
          in_.mask != nullptr ? in_.mask[row * extras + i] != 0 : i < in_.tail_count + row;
      if (seen && i != in_.tail_count + row)
        out.paths.push_back(static_cast<std::int32_t>(known_ + i));
    }
    std::stable_sort(out.paths.begin() + begin, out.paths.end(),
                     [&](std::int32_t a, std::int32_t b) { return at(a) < at(b); });
    bool whole = static_cast<std::int64_t>(out.paths.size()) - begin == position - in_.context;
    for (std::int64_t i = 0; whole && i < position - in_.context; ++i)
      whole = at(out.paths[static_cast<std::size_t>(begin + i)]) == in_.context + i;
    if (!whole)
      throw InvalidInput(name_ + "mask", row,
                         "layers with a state need one row at each position before a row's own");
  }

  void check_parents(const SpanLineage& out) const {
    for (int row = 0; row < out.rows; ++row) {
      const int before = out.depth(row) - 1;
      const std::int64_t parent = before < 0 ? -1 : out.path(row)[before] - known_ - in_.tail_count;
      if (parent < 0) continue;
      const std::int32_t* path = out.path(static_cast<int>(parent));
      if (!std::equal(path, path + before, out.path(row)))
        throw InvalidInput(name_ + "mask", std::int64_t{row},
                           "a row must see what the row at the position before its own sees");
    }
  }

  // The state behind `pages` pages of a path.
  int start_of(const std::int32_t* path, int pages, SpanLineage& out) {
    int found = 0;
    for (int page = 0; page < pages; ++page) {
      SpanLineage::Start next;
      next.parent = found;
      std::copy_n(path + page * kPage, kPage, next.columns);
      std::vector<std::int32_t> key(next.columns, next.columns + kPage);
      key.push_back(found);
      const auto [place, fresh] = starts_.emplace(key, static_cast<int>(out.starts.size()));
      if (fresh) out.starts.push_back(next);
      found = place->second;
    }
    return found;
  }

  void add_writes(SpanLineage& out, Places& places) {
    // The context, and the rows that follow it and one another.
    std::vector<std::int32_t> chain(static_cast<std::size_t>(known_));
    std::iota(chain.begin(), chain.end(), 0);
    for (int row = 0; row < out.rows; ++row) {
      if (out.depth(row) != static_cast<int>(chain.size()) ||
          !std::equal(chain.begin(), chain.end(), out.path(row)))
        break;
      chain.push_back(static_cast<std::int32_t>(known_ + in_.tail_count + row));
    }
    const std::int64_t last = base_ + static_cast<std::int64_t>(chain.size()) / kPage;
    for (const auto& [page, slot] : in_.states.writes) {
      if (page <= base_ || page > last)
        throw InvalidInput(name_ + "writes", page, "name pages that the rows before fill");
      if (slot < 0 || slot >= store_.slots() || !places.written_slots.insert(slot).second)
        throw InvalidInput(name_ + "writes", slot, "name a reserved slot for each state");
      out.writes.push_back({start_of(chain.data(), static_cast<int>(page - base_), out), slot});
    }
  }

  const SpanInput& in_;
  std::string name_;
  const StateStore& store_;
  std::int64_t base_;
  std::int64_t known_ = 0;  // cached rows from the first page on
  std::map<std::vector<std::int32_t>, int> starts_;
};

template <class Set>
bool meet(const Set& a, const Set& b) {
  return std::any_of(a.begin(), a.end(), [&](const auto& each) { return b.contains(each); });
}

}  // namespace

std::vector<SpanLineage> plan_states(const std::vector<SpanInput>& spans, const StateStore& store) {
  std::vector<SpanLineage> out(spans.size());
  Places places;
  int first_row = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    out[i].first_row = first_row;
    LineagePlanner(spans[i], i, store).plan(out[i], places);
    first_row += out[i].rows;
  }
  if (meet(places.written_rows, places.read_rows) || meet(places.written_slots, places.read_slots))
    throw InvalidInput("states", std::monostate(), "store nothing where this forward reads");
  return out;
}

}  // namespace paradecode
