#include "selftest.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "errors.hpp"
#include "isa.hpp"
#include "steps.hpp"

namespace paradecode {
namespace {

constexpr int kTokens = 83;
constexpr int kHidden = 40;
constexpr int kLength = 70;
constexpr int kRecordPages = 12;
constexpr int kStateSlots = 10;

// A convolution, heads of each kind, and attention beside a part with a state; of sizes that
// nothing divides.
ModelShape state_shape() {
  ModelShape shape;
  shape.vocab_size = shape.outputs = kTokens;
  shape.hidden_size = kHidden;
  shape.context_length = 256;
  AttentionShape& attention = shape.attentions.emplace_back();
  attention.heads = 2;
  attention.kv_heads = 1;
  attention.head_dim = 12;
  attention.inverse_frequencies = {1.0F, 0.1F};
  shape.feeds.emplace_back().size = 52;
  StateShape convolution;
  convolution.width = 3;
  convolution.bias = convolution.tap_bias = true;
  convolution.norm = {true, true};
  StateShape added;
  added.heads = 6;
  added.key_heads = 2;
  added.key_dim = 10;
  added.value_dim = 20;
  added.width = 4;
  added.tap_bias = added.skip = true;
  added.gate = Gate::Before;
  added.out_norm = OutNorm::Groups;
  added.norm_groups = 2;
  StateShape delta = added;
  delta.delta = delta.unit = true;
  delta.tap_bias = delta.skip = false;
  delta.strength = Strength::Sigmoid;
  delta.scale = 0.3F;
  delta.gate = Gate::After;
  delta.out_norm = OutNorm::Head;
  StateShape channels = delta;
  channels.delta = channels.unit = false;
  channels.strength = Strength::One;
  channels.decay = Decay::LogSigmoid;
  channels.channels = true;
  channels.decay_rank = 7;
  channels.decay_divisor = 16.0F;
  channels.width = 0;
  channels.bias = channels.output_bias = true;
  StateShape fixed = channels;
  fixed.decay = Decay::Fixed;
  fixed.channels = false;
  fixed.decay_rank = 0;
  fixed.gate = Gate::None;
  fixed.out_norm = OutNorm::None;
  shape.states = {convolution, added, delta, channels, fixed};
  for (StateShape& kind : shape.states) kind.hidden_size = kHidden;
  shape.stack = {
      {.states = {0}, .feed = 0, .groups = {0, 1}},
      {.states = {1}, .first_state = 1, .groups = {0}},
      {.attention = 0, .states = {0, 2}, .first_state = 2, .feed = 0, .groups = {0, 0, 0, 1}},
      {.states = {3}, .first_state = 4, .groups = {0}},
      {.states = {4}, .first_state = 5, .groups = {0}}};
  return shape;
}

// Fills what a layer has beside attention and an MLP.
void fill_state(const StateShape& kind, const std::string& layer,
                const std::function<void(const std::string&, int, int)>& matrix,
                const std::function<void(const std::string&, int, float)>& vector) {
  const bool plain = kind.heads == 0;
  const std::string own = layer + (plain ? "conv_" : "state_");
  const int values = kind.heads * kind.value_dim;
  vector(own + "norm", kHidden, 1.0F);
  if (kind.norm.after) vector(layer + (plain ? "after_conv" : "after_state"), kHidden, 0.6F);
  for (const auto& [name, rows] :
       std::vector<std::pair<std::string, int>>{{plain ? "b" : "q", plain ? kHidden : kind.keys()},
                                                {plain ? "c" : "k", plain ? kHidden : kind.keys()},
                                                {plain ? "x" : "v", plain ? kHidden : values}}) {
    matrix(own + name, rows, kHidden);
    if (kind.bias) vector(own + name + ".bias", rows, 0.1F);
    if (plain || kind.width == 0) continue;
    vector(own + name + "_taps", rows * kind.width, 0.4F);
    if (kind.tap_bias) vector(own + name + "_taps.bias", rows, 0.1F);
  }
  if (plain) {
    vector(own + "taps", kHidden * kind.width, 0.4F);
    vector(own + "taps.bias", kHidden, 0.1F);
    matrix(own + "out", kHidden, kHidden);
    vector(own + "out.bias", kHidden, 0.1F);
    return;
  }
  if (kind.gate != Gate::None) matrix(own + "z", values, kHidden);
  if (kind.gate != Gate::None && kind.bias) vector(own + "z.bias", values, 0.1F);
  if (kind.decay != Decay::Fixed) {
    if (kind.decay_rank > 0) matrix(own + "a_down", kind.decay_rank, kHidden);
    matrix(own + "a", kind.decays(), kind.decay_rank > 0 ? kind.decay_rank : kHidden);
    vector(own + "dt_bias", kind.decays(), -0.5F);
  }
  if (kind.decay != Decay::LogSigmoid) vector(own + "decay", kind.heads, -0.3F);
  if (kind.strength == Strength::Sigmoid) matrix(own + "b", kind.heads, kHidden);
  if (kind.skip) vector(own + "skip", kind.heads, 0.7F);
  if (kind.out_norm != OutNorm::None)
    vector(own + "gain", kind.out_norm == OutNorm::Head ? kind.value_dim : values, 0.9F);
  matrix(own + "o", kHidden, values);
  if (kind.output_bias) vector(own + "o.bias", kHidden, 0.1F);
}

std::unique_ptr<Model> state_model(Format format, int threads) {
  const ModelShape shape = state_shape();
  auto model = std::make_unique<Model>(shape, false, threads);
  std::mt19937 random(4);
  std::vector<std::function<void()>> fills;  // Formats of all matrices come first.
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    model->weights().set_format(name, format);
    fills.emplace_back([&, name, rows, cols] {
      const auto values = random_values(random, static_cast<std::size_t>(rows * cols),
                                        1.0F / std::sqrt(static_cast<float>(cols)));
      model->weights().fill(name, 0, rows, Source::F32,
                            reinterpret_cast<const std::uint8_t*>(values.data()), 4 * cols);
    });
  };
  const auto vector = [&](const std::string& name, int size, float value) {
    const std::vector<float> values(static_cast<std::size_t>(size), value);
    model->weights().set_vector(name, values.data(), size);
  };
  matrix("embed", kTokens, kHidden);
  vector("norm", kHidden, 1.0F);
  for (int i = 0; i < shape.layers(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    if (shape.attends(i)) {
      matrix(layer + "q", 24, kHidden);
      matrix(layer + "k", 12, kHidden);
      matrix(layer + "v", 12, kHidden);
      matrix(layer + "o", kHidden, 24);
      vector(layer + "attn_norm", kHidden, 1.0F);
    }
    for (const int kind : shape.layer(i).states)
      fill_state(shape.states[static_cast<std::size_t>(kind)], layer, matrix, vector);
    if (shape.layer(i).feed < 0) continue;
    matrix(layer + "gate", 52, kHidden);
    matrix(layer + "up", 52, kHidden);
    matrix(layer + "down", kHidden, 52);
    vector(layer + "mlp_norm", kHidden, 1.0F);
  }
  for (const auto& fill : fills) fill();
  model->finish_loading(true);
  model->reserve(12);
  model->reserve_states(kRecordPages, kStateSlots);
  return model;
}

const std::vector<LayerPart> kStack = {{0}, {1}, {2}, {3}, {4}};

// Rows of one sequence, and what they point to.
struct Rows {
  std::vector<std::int32_t> pages = {0, 1, 2, 3, 4, 5}, tokens, positions, slots, logits;
  std::vector<std::uint8_t> mask;
  std::int64_t context = 0;
  StateInput states;

  SpanInput span() const {
    SpanInput out;
    out.pages = pages.data();
    out.page_count = static_cast<std::int64_t>(pages.size());
    out.tokens = tokens.data();
    out.positions = positions.data();
    out.slots = slots.data();
    out.rows = out.logit_count = static_cast<std::int64_t>(tokens.size());
    out.context = context;
    out.mask = mask.empty() ? nullptr : mask.data();
    out.logits = logits.data();
    out.states = states;
    return out;
  }
};

std::int32_t token_at(int place) { return (place * 37 + 5) % kTokens; }

// The rows [first, first + count) of the text, whose pages and states lie anywhere. The state of
// the last page that they fill is written, and their records if the next rows need them.
Rows piece(int first, int count, bool shuffled) {
  Rows out;
  if (shuffled) out.pages = {7, 10, 9, 8, 11, 6};
  for (int i = 0; i < count; ++i) {
    out.tokens.push_back(token_at(first + i));
    out.positions.push_back(first + i);
    out.logits.push_back(i);
  }
  out.slots = out.positions;
  out.context = first;
  out.states.given = true;
  out.states.base = first / kPage;
  const std::int64_t next = (first + count) / kPage;
  const auto slot = [&](std::int64_t page) { return shuffled ? kStateSlots - page : page; };
  if (next > out.states.base) out.states.writes.emplace_back(next, slot(next));
  if (out.states.base > 0) out.states.state = slot(out.states.base);
  for (std::int64_t page = 0; page < 6; ++page) {
    const bool dropped = page >= out.states.base && page < next && page * kPage >= first;
    out.states.records.push_back(dropped ? -1 : out.pages[static_cast<std::size_t>(page)]);
  }
  return out;
}

void add_logits(const ForwardResult& result, int rows, std::vector<float>& out) {
  for (int row = 0; row < rows; ++row)
    out.insert(out.end(), result.logits->read(row), result.logits->read(row) + kTokens);
}

// Logits of a text that is fed in pieces of `step` rows.
std::vector<float> run(Model& model, int step, bool shuffled) {
  std::vector<float> out;
  for (int at = 0; at < kLength; at += step) {
    const int count = std::min(step, kLength - at);
    add_logits(model.forward({piece(at, count, shuffled).span()}, kStack), count, out);
  }
  return out;
}

// The same of two sequences that share each forward, one after the other.
std::vector<float> run_pair(Model& model, int step) {
  std::vector<float> out[2];
  for (int at = 0; at < kLength; at += step) {
    const int count = std::min(step, kLength - at);
    const Rows first = piece(at, count, false);
    const Rows second = piece(at, count, true);
    std::vector<float> both;
    add_logits(model.forward({first.span(), second.span()}, kStack), 2 * count, both);
    const auto middle = both.begin() + std::ptrdiff_t{count} * kTokens;
    out[0].insert(out[0].end(), both.begin(), middle);
    out[1].insert(out[1].end(), middle, both.end());
  }
  require(out[0] == out[1], "sequences of one forward have equal bits");
  return out[0];
}

constexpr int kBefore = 24;
constexpr int kTree = 27;

// The text behind kBefore rows and, after each two of its rows, one of another text that leaves it
// early. Both go beyond the end of a page.
Rows tree() {
  Rows out = piece(kBefore, kTree, false);
  out.states = {.given = true, .records = out.pages};
  out.mask.assign(std::size_t{kTree} * kTree, 0);
  std::vector<std::size_t> path[2];
  for (std::size_t i = 0; i < kTree; ++i) {
    const bool aside = i % 3 == 2;
    if (i == 2) path[1] = path[0];
    std::vector<std::size_t>& own = path[aside];
    const int place = kBefore + static_cast<int>(own.size());
    out.positions[i] = place;
    out.tokens[i] = aside ? 3 : token_at(place);
    own.push_back(i);
    for (const std::size_t at : own) out.mask[i * kTree + at] = 1;
  }
  return out;
}

// The rows of a text have the logits that they have alone, whoever is between them.
void check_tree(Model& model, const std::vector<float>& expected) {
  Rows before = piece(0, kBefore, false);
  before.states = {.given = true, .records = before.pages};
  model.forward({before.span()}, kStack);
  const Rows asked = tree();
  std::vector<float> found;
  add_logits(model.forward({asked.span()}, kStack), kTree, found);
  for (std::ptrdiff_t i = 0; i < kTree; ++i)
    if (i % 3 != 2)
      require(std::equal(found.begin() + i * kTokens, found.begin() + (i + 1) * kTokens,
                         expected.begin() + asked.positions[static_cast<std::size_t>(i)] * kTokens),
              "a row of a tree has the bits that it has alone");
}

// Places that are not there, and rows that follow no other or two, are refused by name.
void check_refused(Model& model) {
  const Rows good = piece(37, 5, false);
  std::vector<float> expected, again;
  add_logits(model.forward({good.span()}, kStack), 5, expected);
  const auto refuse = [&](const std::string& field, const std::function<void(Rows&)>& spoil) {
    Rows bad = good;
    spoil(bad);
    std::string refused;
    try {
      model.forward({bad.span()}, kStack);
    } catch (const InvalidInput& error) {
      refused = error.field;
    }
    require(refused == "spans[0]." + field, ("bad " + field + " is refused").c_str());
  };
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  for (const std::int64_t value : {std::int64_t{-1}, std::int64_t{3}, huge, -huge})
    refuse("base", [&](Rows& bad) { bad.states.base = value; });
  for (const std::int64_t value : {std::int64_t{-1}, std::int64_t{kStateSlots}, huge, -huge})
    refuse("state", [&](Rows& bad) { bad.states.state = value; });
  for (const std::int64_t value : {std::int64_t{2}, std::int64_t{3}, huge, -huge})
    refuse("writes", [&](Rows& bad) { bad.states.writes = {{value, 5}}; });
  for (const std::int64_t value : {std::int64_t{-1}, std::int64_t{kStateSlots}, huge})
    refuse("writes", [&](Rows& bad) {
      bad = piece(37, 11, false);
      bad.states.writes = {{3, value}};
    });
  for (const std::int32_t value : {-2, kRecordPages, 1 << 30})
    refuse("records", [&](Rows& bad) { bad.states.records[1] = value; });
  for (const std::int64_t value : {std::int64_t{3}, huge})
    refuse("records", [&](Rows& bad) { bad.states.first = value; });
  refuse("base", [](Rows& bad) { bad.states.first = -1; });
  refuse("records", [](Rows& bad) { bad.states.records.clear(); });
  refuse("states", [](Rows& bad) {
    bad.context = 5;
    bad.states = {};
  });
  refuse("mask", [](Rows& bad) { bad.positions[2] = 36; });
  refuse("mask", [](Rows& bad) { bad.positions[2] = 44; });
  refuse("mask", [](Rows& bad) { bad.mask.assign(25, 1); });
  refuse("mask", [](Rows& bad) { bad.mask.assign(25, 0); });
  refuse("mask", [](Rows& bad) {  // Row 3 sees row 1, and row 2 before it sees row 0 there.
    bad.positions = {37, 37, 38, 39, 40};
    bad.mask = {1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1};
  });
  refuse("slots", [](Rows& bad) {
    bad.pages.push_back(8);  // Its records lie where the span's own lie.
    bad.states.records.push_back(bad.states.records[2]);
    bad.slots[4] = 6 * kPage + 5;
  });
  bool refused = false;
  try {
    Rows bad = piece(37, 11, false);
    bad.states.writes[0].second = bad.states.state;
    model.forward({bad.span()}, kStack);
  } catch (const InvalidInput& error) {
    refused = error.field == "states";
  }
  require(refused, "a state that is read may not be written");
  const std::int64_t from[] = {3, 4};
  const std::int64_t to[] = {kRecordPages * kPage - 1, kRecordPages * kPage};
  model.copy(from, to, 1, Model::kStates);
  refused = false;
  try {
    model.copy(from, to, 2, Model::kStates);
  } catch (const InvalidInput&) {
    refused = true;
  }
  require(refused, "records are copied within what is reserved");
  add_logits(model.forward({good.span()}, kStack), 5, again);
  require(again == expected, "what is refused changes nothing");
}

// Several steps in one call commit the tokens of plain decoding, and move the states on.
void check_state_steps(Model& model) {
  model.reserve(32);
  model.reserve_states(32, 16);
  std::vector<Tokens> made;
  for (const int most : {0, 8}) {
    StepSequence sequence;
    for (int i = 0; i < 40; ++i) sequence.text.push_back(i % 9 + 1);
    for (std::int32_t page = 0; page < 10; ++page) sequence.pages.push_back(page * 7 % 16);
    sequence.room = sequence.steps = 90;
    if (most > 0) {
      sequence.lookup = std::make_unique<Lookup>(1, 3, most, 0, nullptr);
      const std::vector<double> kinds(LookupState::kKinds, 0.0);
      const std::vector<double> odds(LookupState::kKinds, 0.6);
      sequence.lookup->state.odds = {odds, kinds, kinds, kinds, kinds};
    }
    Rows prompt = piece(0, 39, false);
    prompt.tokens.assign(sequence.text.begin(), sequence.text.end() - 1);
    prompt.pages = prompt.states.records = sequence.pages;
    prompt.states.writes = {{2, 3}};
    model.forward({prompt.span()}, kStack);
    sequence.states = prompt.states;
    sequence.states.writes.clear();
    sequence.states.base = 2;
    sequence.states.state = 3;
    sequence.own_states = {3, 9};
    StepsInput input;
    input.sequences = {&sequence};
    input.spare = {64};
    input.groups = {0};
    input.limit = 10;
    while (sequence.room > 0) require(!run_steps(model, input).empty(), "a call makes a step");
    // A call reports what its last forward did, whose draft may have crossed the end of a page.
    const auto pages = static_cast<std::int64_t>(sequence.text.size() - 1) / kPage;
    require(sequence.states.base == pages || sequence.states.base == pages - 1,
            "states move on with the text");
    made.push_back(sequence.text);
  }
  require(made[0] == made[1], "several steps with drafts commit the tokens of plain decoding");
}

}  // namespace

void check_states() {
  for (const Format format : {Format::F32, Format::Q4}) {
    std::vector<float> expected;
    const std::vector<std::string> isas = available_isas();
    for (const std::string& isa : isas) {
      use_isa(isa);
      const bool first = isa == isas.front();
      for (const int threads : first ? std::vector{1, 2, 4} : std::vector{2}) {
        const auto model = state_model(format, threads);
        if (expected.empty()) expected = run(*model, 1, false);
        require(std::all_of(expected.begin(), expected.end(),
                            [](float value) { return std::isfinite(value); }),
                "logits are numbers");
        for (const int step : {5, 16, 23, kLength})
          require(run(*model, step, step % 2 == 1) == expected,
                  "chunks, pages and slots do not change bits of layers with a state");
        require(run_pair(*model, 11) == expected, "nor does company");
        check_tree(*model, expected);
        run(*model, 37, false);
        check_refused(*model);
        if (threads == 2) check_state_steps(*model);
      }
    }
  }
  use_isa("");
}

}  // namespace paradecode
