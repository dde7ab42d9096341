#include "head.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "errors.hpp"
#include "exact.hpp"
#include "plan.hpp"

namespace paradecode {
namespace {

constexpr int kMostHeads = 1024;
constexpr int kMostSize = 1024;
constexpr int kMostDepth = 64;
constexpr std::int64_t kMostRows = std::int64_t{1} << 24;
// Rows of prompts that go through the networks together.
constexpr std::size_t kRowsAtOnce = 256;

int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

[[noreturn]] void refuse(const char* what, std::int64_t value) {
  throw InvalidInput("head", value, std::string("the sizes of its ") + what + " do not fit");
}

void expect_range(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    throw InvalidInput(field, value,
                       "give " + std::to_string(least) + " to " + std::to_string(most));
}

}  // namespace

HeadMemory::HeadMemory(const HeadNetworks& networks)
    : cache(static_cast<int>(networks.blocks.size()),
            networks.blocks.empty() ? 1 : networks.blocks[0].kv_heads,
            networks.blocks.empty() ? 1 : networks.blocks[0].size,
            networks.enter->format() != Format::F32) {}

void HeadMemory::need(std::int64_t slots) {
  cache.grow((slots + kPage - 1) / kPage);
  for (auto page = static_cast<std::int32_t>(pages.size()); page < cache.pages(); ++page)
    pages.push_back(page);
}

// One call: passes of rows through the networks, and the trees that grow in between.
class HeadPass {
 public:
  HeadPass(DraftHead& head, const std::vector<HeadInput>& inputs)
      : head_(head), nets_(head.networks_), inputs_(inputs), kernels_(nets_.enter->kernels()) {
    for (const HeadInput& input : inputs) trees_.emplace_back(input.limits);
  }

  std::pair<std::vector<DraftTree>, int> run() {
    const bool at_once = !nets_.mask.empty() || nets_.blocks.empty();
    read();
    const int levels = at_once ? cross() : grow();
    std::vector<DraftTree> out;
    for (const GrowingTree& tree : trees_) out.push_back(tree.best());
    return {std::move(out), levels};
  }

 private:
  struct Row {
    std::size_t input;
    const float* from;  // features, or the state above
    std::int64_t token;
    std::int32_t position;
    std::int32_t slot;
    int level;  // of the guesses behind it; -1: nobody asks
  };
  // Rows of one request in a pass, and what they see.
  struct Span {
    std::size_t input;
    std::size_t first;
    std::size_t rows;
    std::unique_ptr<Plan> plan;
  };
  // Some rows of the pass, and the queries of each key/value head in groups.
  struct Queries {
    struct Tile {
      std::size_t span;
      int kv_head;
      int first, count;  // of the span's listed rows, times the query heads of the group
    };
    std::vector<std::size_t> rows;
    std::vector<std::size_t> begins;  // of each span, in `rows`
    std::vector<Tile> tiles;
  };

  const HeadInput& of(const Row& row) const { return inputs_[row.input]; }

  // The committed rows. Their states and ranked guesses are left for the last of each request.
  void read() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const HeadInput& input = inputs_[i];
      const auto known = static_cast<std::int64_t>(input.tokens.size());
      const std::int64_t ahead = nets_.mask.empty() ? 0 : input.limits.depth - 1;
      for (std::int64_t k = nets_.blocks.empty() ? known - 1 : 0; k < known + ahead; ++k) {
        const bool masked = k >= known;
        rows_.push_back({i, masked ? nets_.mask.data() : input.features + k * head_.features(),
                         masked ? nets_.mask_token : input.tokens[static_cast<std::size_t>(k)],
                         static_cast<std::int32_t>(input.start + k),
                         static_cast<std::int32_t>(input.length + k),
                         static_cast<int>(std::max<std::int64_t>(k - known + 1, -1))});
        if (rows_.size() == kRowsAtOnce) read_piece();
      }
    }
    if (!rows_.empty()) read_piece();
  }

  void read_piece() {
    begin_spans();
    for (Span& span : spans_) {
      const HeadInput& input = inputs_[span.input];
      std::vector<std::int32_t> slots;
      std::vector<std::int32_t> positions;
      for (std::size_t k = span.first; k < span.first + span.rows; ++k) {
        slots.push_back(rows_[k].slot);
        positions.push_back(rows_[k].position);
      }
      SpanInput asked;
      asked.slots = slots.data();
      asked.positions = positions.data();
      asked.context = slots[0];
      plan(span, asked, input);
    }
    pass(head_.enter_.get());
    rows_.clear();
  }

  // Rows of one request lie side by side.
  void begin_spans() {
    spans_.clear();
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (spans_.empty() || spans_.back().input != rows_[k].input)
        spans_.push_back({rows_[k].input, k, 0, nullptr});
      ++spans_.back().rows;
    }
  }

  void plan(Span& span, SpanInput& asked, const HeadInput& input) {
    if (nets_.blocks.empty()) return;
    asked.rows = static_cast<std::int64_t>(span.rows);
    input.memory->need(std::int64_t{rows_[span.first + span.rows - 1].slot} + 1);
    asked.pages = input.memory->pages.data();
    asked.page_count = static_cast<std::int64_t>(input.memory->pages.size());
    asked.embeddings = input.features;  // No token is looked up.
    PlanLimits limits;
    limits.context_length = static_cast<int>(2 * kMostRows);
    limits.pages = input.memory->cache.pages();
    span.plan =
        std::make_unique<Plan>(std::vector<SpanInput>{asked}, std::vector<LayerPart>(), limits);
    std::int64_t& known = input.memory->known;
    known = std::max(known, std::int64_t{rows_[span.first + span.rows - 1].slot} + 1);
  }

  // Level after level (the dynamic tree of EAGLE-2); returns how many.
  int grow() {
    struct Branch {
      std::vector<std::int32_t> beam{-1};
      std::size_t first = 0;            // its first state
      std::vector<std::int32_t> slots;  // nodes behind the committed rows
      std::vector<std::int32_t> positions;
    };
    std::vector<Branch> branches(inputs_.size());
    for (std::size_t i = 0; i < branches.size(); ++i) branches[i].first = i;
    const auto width = static_cast<std::size_t>(nets_.width);
    for (int level = 0;; ++level) {
      const std::vector<float> states = std::move(states_);
      const std::vector<std::vector<Ranked>> guesses = std::move(guesses_);
      states_.clear();
      guesses_.clear();
      rows_.clear();
      for (std::size_t i = 0; i < branches.size(); ++i) {
        Branch& branch = branches[i];
        if (branch.beam.empty()) continue;
        const HeadInput& input = inputs_[i];
        const auto known = static_cast<std::int64_t>(input.tokens.size());
        const std::vector<std::int32_t> above = std::move(branch.beam);
        branch.beam = trees_[i].extend(above, guesses.data() + branch.first, level);
        const std::size_t states_at = branch.first;
        branch.first = rows_.size();
        for (std::size_t j = 0; j < branch.beam.size(); ++j) {
          const std::int32_t node = branch.beam[j];
          const auto parent = std::find(above.begin(), above.end(), trees_[i].parent(node));
          const auto place = states_at + static_cast<std::size_t>(parent - above.begin());
          rows_.push_back(
              {i, states.data() + place * width, trees_[i].token(node),
               static_cast<std::int32_t>(input.start + known + level),
               static_cast<std::int32_t>(input.length + known +
                                         static_cast<std::int64_t>(branch.slots.size() + j)),
               level + 1});
        }
      }
      if (rows_.empty()) return level + 1;
      begin_spans();
      for (Span& span : spans_) {
        Branch& branch = branches[span.input];
        plan_nodes(span, branch.beam, branch.slots, branch.positions);
      }
      pass(head_.back_.get());
    }
  }

  // Nodes see what is committed, and their own path.
  void plan_nodes(Span& span, const std::vector<std::int32_t>& beam,
                  std::vector<std::int32_t>& nodes, std::vector<std::int32_t>& node_positions) {
    const HeadInput& input = inputs_[span.input];
    const GrowingTree& tree = trees_[span.input];
    const auto base =
        static_cast<std::int32_t>(input.length) + static_cast<std::int32_t>(input.tokens.size());
    const std::size_t before = nodes.size();
    nodes.insert(nodes.end(), beam.begin(), beam.end());
    std::vector<std::int32_t> slots(nodes.size());
    std::iota(slots.begin(), slots.end(), base);
    node_positions.resize(nodes.size(), rows_[span.first].position);
    std::vector<std::uint8_t> mask;
    for (const std::int32_t node : beam)
      for (const std::int32_t seen : nodes) {
        std::int32_t at = node;
        while (at > seen) at = tree.parent(at);
        mask.push_back(at == seen ? 1 : 0);
      }
    SpanInput asked;
    asked.slots = slots.data() + before;
    asked.positions = node_positions.data() + before;
    asked.context = base;
    asked.tail = slots.data();
    asked.tail_positions = node_positions.data();
    asked.tail_count = static_cast<std::int64_t>(before);
    asked.mask = mask.data();
    plan(span, asked, input);
  }

  // Every level's guesses, made without knowing the others', then the best tree of them.
  int cross() {
    auto next = guesses_.begin();
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      std::vector<std::vector<Ranked>> levels;
      const int depth = inputs_[i].limits.depth;
      const std::size_t rows = nets_.mask.empty() ? 1 : static_cast<std::size_t>(depth);
      for (std::size_t k = 0; k < rows * nets_.outs.size(); ++k, ++next)
        if (!next->empty()) levels.push_back(std::move(*next));
      trees_[i].cross(levels.data(), levels.size());
    }
    return 1;
  }

  // Rows through `first` (null: they are states), the blocks and the outs. Appends the states and
  // the guesses of the rows that somebody asks.
  void pass(NetworkRun* first) {
    first_ = first;
    const auto rows = static_cast<int>(rows_.size());
    std::vector<std::size_t> everything(rows_.size());
    std::iota(everything.begin(), everything.end(), std::size_t{0});
    list(everything, all_);
    std::vector<std::size_t> asked;
    for (const std::size_t k : everything)
      if (rows_[k].level >= 0) asked.push_back(k);
    list(asked, asked_);
    if (first != nullptr) first->begin(rows);
    for (std::size_t b = 0; b < nets_.blocks.size(); ++b) {
      head_.before_[b]->begin(rows);
      head_.after_[b]->begin(static_cast<int>(queries(b).rows.size()));
    }
    outs_ = asked.empty() ? 0 : nets_.outs.size();
    int deepest = 0;
    for (const std::size_t k : asked) deepest = std::max(deepest, of(rows_[k]).limits.depth);
    if (nets_.outs.size() > 1) outs_ = std::min(outs_, static_cast<std::size_t>(deepest));
    logits_.clear();
    for (std::size_t o = 0; o < outs_; ++o) {
      const int vocabulary = nets_.outs[o]->widths().back();
      logits_.push_back(std::make_shared<LogitRows>(head_.logit_store_, kernels_, nullptr,
                                                    static_cast<int>(asked.size()), vocabulary));
      head_.outs_[o]->begin(static_cast<int>(asked.size()));
      head_.outs_[o]->write_to(logits_[o]->writable(0), LogitRows::stride_for(vocabulary));
    }
    made_.assign(asked.size() * nets_.outs.size(), {});
    head_.team_->run(
        phases(), [](void* self, Member& member) { static_cast<HeadPass*>(self)->work(member); },
        this);
    collect();
  }

  void collect() {
    const auto width = static_cast<std::size_t>(nets_.width);
    for (std::size_t i = 0; i < asked_.rows.size(); ++i) {
      const float* state = state_of(nets_.blocks.size(), i);
      states_.insert(states_.end(), state, state + width);
      for (std::size_t o = 0; o < nets_.outs.size(); ++o) {
        std::vector<Ranked>& made = made_[i * nets_.outs.size() + o];
        if (made.empty() && ranks(i, o))
          throw BackendError("the head returned logits that are NaN or infinite");
        guesses_.push_back(std::move(made));
      }
    }
  }

  // Whether anybody wants to know what an out says of a listed row; `level` is that of its guess.
  bool ranks(std::size_t i, std::size_t out) const {
    const Row& row = rows_[asked_.rows[i]];
    return row.level + static_cast<int>(out) < of(row).limits.depth;
  }

  int phases() const {
    int out = 1;
    for (const auto* runs : {&head_.before_, &head_.after_, &head_.outs_})
      for (const auto& run : *runs) out += run->phases() + 1;
    return out + (first_ == nullptr ? 0 : first_->phases());
  }

  const Queries& queries(std::size_t block) const {
    return block + 1 == nets_.blocks.size() ? asked_ : all_;
  }

  void list(const std::vector<std::size_t>& rows, Queries& out) const {
    out.rows = rows;
    out.begins.clear();
    out.tiles.clear();
    std::size_t at = 0;
    for (std::size_t s = 0; s < spans_.size(); ++s) {
      out.begins.push_back(at);
      const std::size_t begin = at;
      while (at < rows.size() && rows[at] < spans_[s].first + spans_[s].rows) ++at;
      if (nets_.blocks.empty()) continue;
      const HeadBlock& block = nets_.blocks[0];
      const int count = static_cast<int>(at - begin) * (block.heads / block.kv_heads);
      for (int kv = 0; kv < block.kv_heads; ++kv)
        for (int q = 0; q < count; q += kMaxQueries)
          out.tiles.push_back({s, kv, q, std::min(kMaxQueries, count - q)});
    }
  }

  // The state of the i-th listed row that enters a block, or the outs.
  const float* state_of(std::size_t block, std::size_t i) {
    if (block > 0) return head_.after_[block - 1]->result(static_cast<int>(i));
    const std::size_t row = nets_.blocks.empty() ? asked_.rows[i] : i;
    return first_ == nullptr ? rows_[row].from : first_->result(static_cast<int>(row));
  }

  void copy(const float* from, int count, float* to) const {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  }

  void work(Member& member) {
    if (first_ != nullptr)
      first_->work(member, [&](int row) {
        const int width = first_ == head_.enter_.get() ? head_.features() : nets_.width;
        copy(rows_[static_cast<std::size_t>(row)].from, width, first_->input(0, row));
      });
    for (std::size_t b = 0; b < nets_.blocks.size(); ++b) mix(member, b);
    for (std::size_t o = 0; o < outs_; ++o)
      head_.outs_[o]->work(member, [&](int i) {
        copy(state_of(nets_.blocks.size(), static_cast<std::size_t>(i)), nets_.width,
             head_.outs_[o]->input(0, i));
      });
    const std::size_t asked = asked_.rows.size();
    member.phase(static_cast<int>(asked * outs_), [&](int chunk) {
      const std::size_t i = static_cast<std::size_t>(chunk) % asked;
      const std::size_t o = static_cast<std::size_t>(chunk) / asked;
      LogitRows& logits = *logits_[o];
      const auto row = static_cast<int>(i);
      float* values = logits.writable(row);
      std::fill(values + logits.vocab_size(), values + LogitRows::stride_for(logits.vocab_size()),
                -INFINITY);
      const Row& asks = rows_[asked_.rows[i]];
      if (ranks(i, o))
        made_[i * nets_.outs.size() + o] =
            ranked(logits, row, of(asks).limits, static_cast<std::size_t>(asks.level) + o,
                   nets_.to_target);
    });
  }

  void mix(Member& member, std::size_t b) {
    const HeadBlock& block = nets_.blocks[b];
    NetworkRun& before = *head_.before_[b];
    NetworkRun& after = *head_.after_[b];
    before.work(member, [&](int row) {
      const auto k = static_cast<std::size_t>(row);
      copy(state_of(b, k), nets_.width, before.input(0, row));
      if (b == 0) before.ids(1)[k] = rows_[k].token;
    });
    member.phase(static_cast<int>(rows_.size()), [&](int row) { turn(b, row); });
    const Queries& asks = queries(b);
    member.phase(static_cast<int>(asks.tiles.size()), [&](int chunk) {
      attend(b, asks, asks.tiles[static_cast<std::size_t>(chunk)],
             head_.members_[static_cast<std::size_t>(member.index())].scores);
    });
    const int rest = (block.heads + 2 * block.kv_heads) * block.size;
    after.work(member, [&](int i) {
      const auto row = static_cast<int>(asks.rows[static_cast<std::size_t>(i)]);
      copy(before.result(row) + rest, nets_.after_rest(b), after.input(1, i));
    });
  }

  // Rotates a row's queries and keys, and stores its keys and values.
  void turn(std::size_t b, int index) {
    const HeadBlock& block = nets_.blocks[b];
    const Row& row = rows_[static_cast<std::size_t>(index)];
    Cache& cache = of(row).memory->cache;
    const Slot slot{row.slot / kPage, static_cast<std::uint8_t>(row.slot % kPage), false};
    const int size = block.size;
    const int half = size / 2;
    float cosines[kMostSize / 2];
    float sines[kMostSize / 2];
    for (int i = 0; i < half; ++i)
      exact_turn(row.position * block.frequencies[static_cast<std::size_t>(i)], cosines[i],
                 sines[i]);
    float padded[kMostSize + kLanes] = {};
    const auto turned = [&](const float* x, const std::vector<float>& gain, float factor) {
      copy(x, size, padded);
      if (!gain.empty())
        kernels_.rms_norm(padded, gain.data(), size, round_up(size, kLanes), block.epsilon, padded);
      for (int i = 0; i < half; ++i) {
        const float a = padded[i];
        const float z = padded[i + half];
        padded[i] = (a * cosines[i] - z * sines[i]) * factor;
        padded[i + half] = (z * cosines[i] + a * sines[i]) * factor;
      }
    };
    float* x = head_.before_[b]->result(index);
    const float scale = 1.0F / std::sqrt(static_cast<float>(size));
    for (int head = 0; head < block.heads; ++head, x += size) {
      turned(x, block.q_norm, scale);
      copy(padded, size, x);
    }
    const auto layer = static_cast<int>(b);
    for (int head = 0; head < block.kv_heads; ++head, x += size) {
      turned(x, block.k_norm, 1.0F);
      cache.put_key(slot, layer, head, padded, kernels_);
    }
    for (int head = 0; head < block.kv_heads; ++head, x += size) {
      copy(x, size, padded);
      cache.put_value(slot, layer, head, padded, kernels_);
    }
  }

  void attend(std::size_t b, const Queries& asks, const Queries::Tile& tile,
              Buffer<float>& scores) {
    const HeadBlock& block = nets_.blocks[b];
    const Span& span = spans_[tile.span];
    const SpanPlan& plan = span.plan->spans[0];
    const Cache& cache = inputs_[span.input].memory->cache;
    AttentionTile out;
    out.span = &plan.view;
    out.head_dim = block.size;
    out.padded_dim = cache.padded_dim();
    out.score_stride = round_up(plan.view.extra_length + 2 * kLanes, kLanes);
    out.scores = scores.need(static_cast<std::size_t>(kMaxQueries * out.score_stride));
    const auto layer = static_cast<int>(b);
    out.keys[0] = cache.keys(false, layer, tile.kv_head);
    out.values[0] = cache.values(false, layer, tile.kv_head);
    out.stretch[0] = cache.stretch(false);
    const int group = block.heads / block.kv_heads;
    for (int q = tile.first; q < tile.first + tile.count; ++q) {
      const std::size_t i = asks.begins[tile.span] + static_cast<std::size_t>(q / group);
      const int at = (tile.kv_head * group + q % group) * block.size;
      out.row[out.count] = static_cast<int>(asks.rows[i] - span.first);
      out.query[out.count] = head_.before_[b]->result(static_cast<int>(asks.rows[i])) + at;
      out.out[out.count] = head_.after_[b]->input(0, static_cast<int>(i)) + at;
      ++out.count;
    }
    // Blocks of tokens that any of these rows sees.
    int most = 0;
    for (int q = 0; q < out.count; ++q) most = std::max(most, plan.view.rows[out.row[q]].count);
    out.end_block = (plan.view.prefix_length + most + kAttentionBlock - 1) / kAttentionBlock;
    if (cache.half())
      kernels_.attention_f16(out);
    else
      kernels_.attention_f32(out);
  }

  DraftHead& head_;
  const HeadNetworks& nets_;
  const std::vector<HeadInput>& inputs_;
  const Kernels& kernels_;
  std::vector<GrowingTree> trees_;
  std::vector<float> states_;                 // of rows that somebody asked, pass after pass
  std::vector<std::vector<Ranked>> guesses_;  // of these rows, out after out

  // Of the pass in progress.
  std::vector<Row> rows_;
  std::vector<Span> spans_;
  Queries all_;
  Queries asked_;
  NetworkRun* first_ = nullptr;
  std::size_t outs_ = 0;
  std::vector<std::shared_ptr<LogitRows>> logits_;
  std::vector<std::vector<Ranked>> made_;
};

DraftHead::DraftHead(HeadNetworks networks, int threads)
    : networks_(std::move(networks)),
      team_(Team::of(threads)),
      logit_store_(std::make_shared<LogitStore>()),
      members_(static_cast<std::size_t>(threads)) {
  check();
  const auto run_of = [&](const std::shared_ptr<const Network>& network) {
    return std::make_unique<NetworkRun>(*network, threads);
  };
  enter_ = run_of(networks_.enter);
  if (networks_.back != nullptr) back_ = run_of(networks_.back);
  for (const HeadBlock& block : networks_.blocks) {
    before_.push_back(run_of(block.before));
    after_.push_back(run_of(block.after));
  }
  for (const auto& out : networks_.outs) outs_.push_back(run_of(out));
}

void DraftHead::check() const {
  const int width = networks_.width;
  const auto fits = [](const Network& network, const std::vector<int>& inputs, int result) {
    const std::vector<int> known(network.widths().begin(),
                                 network.widths().begin() + network.inputs());
    return network.rows_are_apart() && known == inputs &&
           (result == 0 || network.widths().back() == result);
  };
  expect_range("width of a head", width, 1, 1 << 20);
  if (networks_.enter->inputs() != 1 || features() < 1 ||
      !fits(*networks_.enter, {features()}, width))
    refuse("first network", features());
  if (networks_.back != nullptr && !fits(*networks_.back, {width}, width)) refuse("back", width);
  if (networks_.outs.empty() || networks_.outs.size() > kMostDepth ||
      (networks_.outs.size() > 1 && !networks_.blocks.empty()))
    refuse("outs", static_cast<std::int64_t>(networks_.outs.size()));
  const int vocabulary = networks_.outs[0]->widths().back();
  for (const auto& out : networks_.outs)
    if (!fits(*out, {width}, vocabulary)) refuse("outs", out->widths().back());
  const std::vector<HeadBlock>& blocks = networks_.blocks;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const HeadBlock& block = blocks[b];
    expect_range("heads", block.heads, 1, kMostHeads);
    expect_range("kv_heads", block.kv_heads, 1, block.heads);
    expect_range("size", block.size, 2, kMostSize);
    const int attended = block.heads * block.size;
    const int narrow = block.kv_heads * block.size;
    const auto same = [&](const std::vector<float>& gain) {
      return gain.empty() || static_cast<int>(gain.size()) == round_up(block.size, kLanes);
    };
    const std::vector<int> entering = b == 0 ? std::vector<int>{width, 0} : std::vector<int>{width};
    const int rest = networks_.after_rest(b);
    if (block.heads % block.kv_heads != 0 || block.size % 2 != 0 ||
        block.kv_heads != blocks[0].kv_heads || block.heads != blocks[0].heads ||
        block.size != blocks[0].size || !same(block.q_norm) || !same(block.k_norm) ||
        static_cast<int>(block.frequencies.size()) != block.size / 2 || rest < 1 ||
        !fits(*block.before, entering, attended + 2 * narrow + rest) ||
        !fits(*block.after, {attended, rest}, width))
      refuse("blocks", static_cast<std::int64_t>(b));
    for (const double frequency : block.frequencies)
      if (!std::isfinite(frequency) || std::fabs(frequency) > 2)
        throw InvalidInput("frequencies", std::monostate(), "give finite numbers of at most 2");
  }
  if (!networks_.to_target.empty() &&
      networks_.to_target.size() != static_cast<std::size_t>(vocabulary))
    refuse("to_target", static_cast<std::int64_t>(networks_.to_target.size()));
  if (!networks_.mask.empty() && (networks_.mask.size() != static_cast<std::size_t>(features()) ||
                                  blocks.empty() || networks_.outs.size() != 1))
    refuse("mask", static_cast<std::int64_t>(networks_.mask.size()));
  if (blocks.empty()) return;
  // Every token that may enter has a row in the table.
  std::vector<std::int64_t> entering(networks_.to_target.begin(), networks_.to_target.end());
  if (entering.empty()) entering = {vocabulary - 1};
  if (!networks_.mask.empty()) entering = {networks_.mask_token};
  blocks[0].before->check_ids(1, entering.data(), static_cast<std::int64_t>(entering.size()));
}

void DraftHead::check_input(const HeadInput& input) const {
  const auto rows = static_cast<std::int64_t>(input.tokens.size());
  expect_range("rows of a draft", rows, 1, kMostRows);
  expect_range("start", input.start, 0, kMostRows - rows);
  expect_range("length of a memory", input.length, 0,
               networks_.blocks.empty() ? kMostRows : input.memory->known);
  expect_range("count", input.limits.count, 1, 1 << 16);
  expect_range("width", input.limits.width, 1, 1 << 8);
  expect_range("depth", input.limits.depth, 1, kMostDepth);
  if (!networks_.blocks.empty())
    networks_.blocks[0].before->check_ids(1, input.tokens.data(), rows);
}

std::pair<std::size_t, std::size_t> DraftHead::bytes() const {
  std::size_t level = networks_.back == nullptr ? 0 : networks_.back->matrix_bytes();
  for (const HeadBlock& block : networks_.blocks)
    level += block.before->matrix_bytes() + block.after->matrix_bytes();
  for (const auto& out : networks_.outs) level += out->matrix_bytes();
  return {level, networks_.enter->matrix_bytes()};
}

std::pair<std::vector<DraftTree>, int> DraftHead::draft(const std::vector<HeadInput>& inputs) {
  const FloatState state;
  team_->check_process();
  const std::lock_guard lock(busy_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_input(inputs[i]);
    for (std::size_t j = 0; j < i; ++j)
      if (inputs[j].memory == inputs[i].memory)
        throw InvalidInput("memory", static_cast<std::int64_t>(i), "give each request its own");
  }
  return HeadPass(*this, inputs).run();
}

}  // namespace paradecode
