// The core without Python, to be run under AddressSanitizer, UndefinedBehaviorSanitizer and
// ThreadSanitizer: tiny random models of every format go through prefill, trees, unstored rows,
// copies, sampling and several steps in one call, with one to four threads, also from two callers
// at once. All runs of a model must give the same bits. Takes a few seconds.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "errors.hpp"
#include "exact.hpp"
#include "forward.hpp"
#include "head.hpp"
#include "isa.hpp"
#include "model.hpp"
#include "network.hpp"
#include "steps.hpp"

using namespace paradecode;

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// The instruction set of what is made from now on; the processor's best if empty.
void use_isa(const std::string& name) {
#if defined(_WIN32)
  _putenv_s("PARADECODE_ISA", name.c_str());
#else
  setenv("PARADECODE_ISA", name.c_str(), 1);
#endif
}

std::vector<float> random_values(std::mt19937& random, std::size_t count, float scale) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

std::unique_ptr<Model> make_model(Format format, bool half_cache, int threads) {
  ModelShape shape;
  shape.vocab_size = 131;
  shape.hidden_size = 80;
  shape.layers = 2;
  shape.heads = 6;
  shape.kv_heads = 2;
  shape.head_dim = 24;
  shape.intermediate_size = 100;
  shape.context_length = 256;
  for (int i = 0; i < 12; ++i)
    shape.inverse_frequencies.push_back(std::pow(10000.0F, -static_cast<float>(i) / 12.0F));
  auto model = std::make_unique<Model>(shape, half_cache, threads);
  std::mt19937 random(1);
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    model->set_format(name, format);
    return [&, name, rows, cols] {
      const auto values = random_values(random, static_cast<std::size_t>(rows * cols),
                                        2.0F / std::sqrt(static_cast<float>(cols)));
      model->fill(name, 0, rows, Source::F32, reinterpret_cast<const std::uint8_t*>(values.data()),
                  4 * cols);
    };
  };
  const auto vector = [&](const std::string& name, int size) {
    const std::vector<float> values(static_cast<std::size_t>(size), 1.0F);
    model->set_vector(name, values.data(), size);
  };
  matrix("embed", 131, 80)();
  vector("norm", 80);
  for (int i = 0; i < shape.layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    matrix(layer + "q", 144, 80)();
    matrix(layer + "k", 48, 80)();
    matrix(layer + "v", 48, 80)();
    matrix(layer + "o", 80, 144)();
    const auto gate = matrix(layer + "gate", 100, 80);  // placed when `up` is known
    matrix(layer + "up", 100, 80)();
    gate();
    matrix(layer + "down", 80, 100)();
    vector(layer + "attn_norm", 80);
    vector(layer + "mlp_norm", 80);
    vector(layer + "q.bias", 144);
  }
  model->finish_loading(true);
  model->reserve(12);
  return model;
}

const std::vector<LayerPart> kAll = {{0, true, true}, {1, true, true}};
const std::vector<LayerPart> kHalves = {
    {0, true, false}, {0, false, true}, {1, true, false}, {1, false, true}};
const std::vector<LayerPart> kSome = {{0, false, true}, {1, true, false}};

// Logits of 40 tokens, fed in pieces of `step` rows.
std::vector<float> run(Model& model, int step, bool shuffled,
                       const std::vector<LayerPart>& layers = kAll) {
  std::vector<std::int32_t> pages = {0, 1, 2, 3};
  if (shuffled) pages = {7, 2, 9, 4};
  std::vector<std::int32_t> tokens(40);
  std::vector<std::int32_t> places(40);
  for (int i = 0; i < 40; ++i) {
    tokens[static_cast<std::size_t>(i)] = (i * 37 + 5) % 131;
    places[static_cast<std::size_t>(i)] = i;
  }
  std::vector<float> out;
  for (int at = 0; at < 40; at += step) {
    const int count = std::min(step, 40 - at);
    SpanInput span;
    span.pages = pages.data();
    span.page_count = 4;
    span.tokens = tokens.data() + at;
    span.positions = places.data() + at;
    span.slots = places.data() + at;
    span.rows = count;
    span.context = at;
    span.logits = places.data();
    span.logit_count = count;
    span.hidden = {0};
    const ForwardResult result = model.forward({span}, layers);
    for (int r = 0; r < count; ++r)
      out.insert(out.end(), result.logits->read(r), result.logits->read(r) + 131);
    for (int r = 0; r < count; ++r) {
      const std::int32_t sampled = result.logits->sample(r, {0.8, 20, 0.9, 0.01}, 77);
      require(sampled >= 0 && sampled < 131, "a sampled token is in the vocabulary");
      require(result.logits->sample(r, {0.8, 0, 1, 0}, 77) < 131, "and so without filters");
    }
  }
  return out;
}

// A tree of unstored rows over a cached context with a tail.
void run_tree(Model& model) {
  const std::vector<std::int32_t> pages = {0, 1, 2, 3};
  const std::vector<std::int32_t> tokens = {4, 5, 6};
  const std::vector<std::int32_t> positions = {20, 20, 21};
  const std::vector<std::int32_t> slots = {-1, 50, -1};
  const std::vector<std::int32_t> tail = {33, 21};
  const std::vector<std::int32_t> tail_positions = {19, 18};
  const std::vector<std::uint8_t> mask = {1, 1, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  SpanInput span;
  span.pages = pages.data();
  span.page_count = 4;
  span.tokens = tokens.data();
  span.positions = positions.data();
  span.slots = slots.data();
  span.rows = 3;
  span.context = 18;
  span.tail = tail.data();
  span.tail_positions = tail_positions.data();
  span.tail_count = 2;
  span.mask = mask.data();
  span.logits = slots.data() + 1;
  span.logit_count = 0;
  model.forward({span}, kAll);
  bool refused = false;
  span.context = 60;  // slot 50 would be both read and written
  try {
    model.forward({span}, kAll);
  } catch (const InvalidInput& error) {
    refused = error.field == "spans[0].slots";
  }
  require(refused, "a slot that is read may not be written");
  span.context = 18;
  const std::vector<LayerPart> wrong[] = {
      {{0, true, false}, {2, false, true}}, {{-1, true, true}}, std::vector<LayerPart>(1 << 20)};
  for (const auto& layers : wrong) {
    refused = false;
    try {
      model.forward({span}, layers);
    } catch (const InvalidInput& error) {
      refused = error.field == "layers";
    }
    require(refused, "layers that the model does not have, or too many, are refused");
  }
  const std::int64_t from[] = {3, 4};
  const std::int64_t to[] = {4, 100};
  model.copy(from, to, 2);
}

// A sequence of `room` tokens to come, whose prompt is read into pages of its own.
std::unique_ptr<StepSequence> begun(Model& model, std::unique_ptr<Lookup> lookup,
                                    double temperature, int number, std::int64_t room) {
  auto made = std::make_unique<StepSequence>();
  StepSequence& sequence = *made;
  for (int i = 0; i < 40; ++i) sequence.text.push_back(i % 9 + 1);
  for (int page = 0; page < 10; ++page) sequence.pages.push_back(16 * number + (page * 7 + 3) % 16);
  sequence.lookup = std::move(lookup);
  sequence.room = room;
  sequence.warp.temperature = temperature;
  sequence.warp.top_p = 0.9;
  sequence.seed = 11 + static_cast<std::uint64_t>(number);
  const std::size_t prompt = sequence.text.size();
  std::vector<std::int32_t> places(prompt);
  for (std::size_t i = 0; i < prompt; ++i) places[i] = static_cast<std::int32_t>(i);
  SpanInput span;
  span.pages = sequence.pages.data();
  span.page_count = static_cast<std::int64_t>(sequence.pages.size());
  span.tokens = sequence.text.data();
  span.positions = span.slots = places.data();
  span.rows = static_cast<std::int64_t>(prompt) - 1;
  model.forward({span}, kAll);
  return made;
}

// Runs sequences of as much room to their end, in calls of several steps each; `limit`: seconds of
// a call.
void finish_steps(Model& model, const std::vector<StepSequence*>& sequences, double limit) {
  const CostCurve curve{{1, 64}, {0, 1000}, {{1.0, 7.3}, {1.0, 7.3}}};
  StepsInput input;
  input.sequences = sequences;
  input.curve = &curve;
  input.spare = {64};
  input.groups.assign(sequences.size(), 0);
  input.limit = limit;
  const auto open = [](const StepSequence* sequence) { return sequence->room > 0; };
  while (!input.sequences.empty()) {
    require(!run_steps(model, input).empty(), "a call makes a step");
    std::erase_if(input.sequences, [&](const StepSequence* one) { return !open(one); });
    input.groups.resize(input.sequences.size());
  }
  for (const StepSequence* sequence : sequences)
    require(sequence->room == 0, "no step commits too much");
}

constexpr std::int64_t kStepRoom = 90;

Tokens steps_of(Model& model, std::unique_ptr<Lookup> lookup, double limit, double temperature,
                int number = 0) {
  const auto sequence = begun(model, std::move(lookup), temperature, number, kStepRoom);
  finish_steps(model, {sequence.get()}, limit);
  require(sequence->text.size() == 40 + kStepRoom, "no step commits too much");
  return sequence->text;
}

std::unique_ptr<Lookup> copier(int most, std::int64_t patience,
                               std::shared_ptr<const NgramTable> table) {
  auto lookup = std::make_unique<Lookup>(1, 3, most, patience, std::move(table));
  const std::vector<double> kinds(LookupState::kKinds, 0.0);
  lookup->state.odds = {std::vector<double>(LookupState::kKinds, 0.6), kinds, kinds, kinds, kinds};
  lookup->state.table_odds = lookup->state.odds;
  return lookup;
}

// Drafts, however they come about, and the size of calls change no token.
void check_steps() {
  const auto model = make_model(Format::Q4, true, 2);
  model->reserve(32);
  // What follows 1, 2, ... 9, 1, 2, ... whatever the size of the context.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> entries;
  for (std::int32_t row = 0; row < 9; ++row) {
    Tokens context;
    for (std::int32_t i = 0; i < NgramTable::kOrder; ++i) context.push_back((row + i) % 9 + 1);
    std::array<std::uint32_t, NgramTable::kOrder> keys{};
    NgramTable::keys_of(context.data(), NgramTable::kOrder, &keys);
    for (std::uint32_t size = 0; size < 4; ++size)
      entries.emplace_back(keys[size], (row + 4) % 9 + 1 + (size << NgramTable::kBucketShift));
  }
  std::sort(entries.begin(), entries.end());
  std::vector<std::uint32_t> known, values;
  for (const auto& [key, value] : entries) {
    known.push_back(key);
    values.push_back(value);
  }
  const auto table = std::make_shared<NgramTable>(known, values);
  for (const double temperature : {0.0, 0.9}) {
    const Tokens plain = steps_of(*model, nullptr, 10, temperature);
    for (const std::int64_t patience : {0, 3})
      for (const int most : {0, 1, 8})
        for (const bool with_table : {false, true})
          for (const double limit : {0.0, 10.0}) {
            require(steps_of(*model, copier(most, patience, with_table ? table : nullptr), limit,
                             temperature) == plain,
                    "several steps with drafts commit the tokens of plain decoding");
          }
  }
  for (const double temperature : {0.0, 0.9}) {
    const Tokens first = steps_of(*model, nullptr, 10, temperature);
    const Tokens second = steps_of(*model, nullptr, 10, temperature, 1);
    const auto one = begun(*model, copier(8, 3, table), temperature, 0, kStepRoom);
    const auto two = begun(*model, nullptr, temperature, 1, kStepRoom);
    finish_steps(*model, {one.get(), two.get()}, 10);
    require(one->text == first && two->text == second, "company changes no token");
  }
  StepSequence bad;
  bad.lookup = copier(8, 0, nullptr);
  bad.text = {1, 2, 500};  // The model has no such token.
  bad.pages = {0, 1};
  bad.room = 4;
  StepsInput input;
  input.sequences = {&bad};
  input.spare = {64};
  input.groups = {0};
  input.limit = 10;
  require(run_steps(*model, input).empty(), "a step that fails is not reported");
  bad.lookup = nullptr;
  bad.text = Tokens(32, 1);
  require(run_steps(*model, input).size() == 1, "steps end with the page table");
}

// A model of one layer whose head is `head`; tokens that are read are rows of an embedding beside.
std::unique_ptr<Model> headed_model(const std::vector<float>& head, int vocabulary, Source source) {
  ModelShape shape;
  shape.vocab_size = vocabulary;
  shape.hidden_size = 256;
  shape.layers = 1;
  shape.heads = shape.kv_heads = 1;
  shape.head_dim = shape.intermediate_size = 32;
  shape.context_length = 256;
  auto model = std::make_unique<Model>(shape, true, 2);
  std::mt19937 random(5);
  const auto fill = [&](const std::string& name, int rows, const std::vector<float>& values) {
    model->fill(name, 0, rows, Source::F32, reinterpret_cast<const std::uint8_t*>(values.data()),
                4 * static_cast<std::int64_t>(values.size()) / rows);
  };
  const std::pair<const char*, int> matrices[] = {
      {"embed", vocabulary}, {"layers.0.q", 32},    {"layers.0.k", 32},  {"layers.0.v", 32},
      {"layers.0.o", 256},   {"layers.0.gate", 32}, {"layers.0.up", 32}, {"layers.0.down", 256}};
  for (const auto& [name, rows] : matrices) model->set_format(name, Format::Q8);
  for (const auto& [name, rows] : matrices) {
    const bool narrow = rows == 256;
    fill(name, rows,
         random_values(random, static_cast<std::size_t>(rows * (narrow ? 32 : 256)), 0.1F));
  }
  const std::vector<float> ones(256, 1.0F);
  for (const char* name : {"norm", "layers.0.attn_norm", "layers.0.mlp_norm"})
    model->set_vector(name, ones.data(), 256);
  model->set_format("head", own_format(source));
  if (source == Source::Q8_0) {
    fill("head", vocabulary, head);
  } else {  // Random blocks, of which some are alike.
    const std::size_t bytes = source_row_bytes(source, 256);
    std::vector<std::uint8_t> blocks(bytes * static_cast<std::size_t>(vocabulary));
    for (std::size_t i = 0; i < blocks.size(); ++i)
      blocks[i] = i % bytes >= 208 ? 0x21 : static_cast<std::uint8_t>(random());
    for (std::size_t row = 1; row < blocks.size() / bytes; row += 2)
      std::copy_n(blocks.data() + (row - 1) * bytes, bytes, blocks.data() + row * bytes);
    model->fill("head", 0, vocabulary, source, blocks.data(), static_cast<std::int64_t>(bytes));
  }
  model->finish_loading(false);
  model->reserve(1);
  return model;
}

// A screened head finds the tokens that all logits would show: of equals the first, and none where
// a logit is no number.
void check_screen() {
  constexpr int vocabulary = 1003;
  std::mt19937 random(2);
  std::vector<float> head = random_values(random, std::size_t{vocabulary} * 256, 0.2F);
  for (int row = 0; row < vocabulary; ++row) {
    // Some tokens stand out, some are equal, and some know nothing.
    const auto at = head.begin() + row * 256;
    const float size = row % 7 == 0 ? 4.0F : 1.0F;
    std::transform(at, at + 256, at, [&](float value) { return size * value; });
    if (row % 5 == 4) std::copy_n(at - 256, 256, at);
    if (row % 11 == 10) std::fill_n(at, 256, 0.0F);
  }
  std::vector<float> broken = head;
  broken[500 * 256 + 3] = INFINITY;  // Its block has no scale any more.
  const std::int32_t pages[] = {0};
  const std::int32_t places[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto tokens_of = [&](Model& model, int first, int rows, bool only_best) {
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < rows; ++i) tokens.push_back((first * 13 + i * 101) % vocabulary);
    SpanInput span;
    span.pages = pages;
    span.page_count = 1;
    span.tokens = tokens.data();
    span.positions = span.slots = span.logits = places;
    span.rows = span.logit_count = rows;
    const ForwardResult result = model.forward({span}, {{0, true, true}}, only_best);
    std::vector<std::int32_t> out;
    for (int r = 0; r < rows; ++r) {
      try {
        out.push_back(result.logits->argmax(r));
      } catch (const BackendError&) {
        out.push_back(-1);
      }
    }
    return out;
  };
  for (const std::string& isa : available_isas()) {
    use_isa(isa);
    for (const auto& [values, source] :
         {std::pair{head, Source::Q8_0}, std::pair{broken, Source::Q8_0},
          std::pair{head, Source::Q6_K}}) {
      const auto model = headed_model(values, vocabulary, source);
      for (int i = 0; i < 8; ++i) tokens_of(*model, i, 8, true);  // Now there is a screen.
      int errors = 0;
      for (int i = 0; i < 60; ++i) {
        const int rows = i % 8 + 1;
        const auto expected = tokens_of(*model, i, rows, false);
        require(tokens_of(*model, i, rows, true) == expected, "a screen changes no best token");
        errors += static_cast<int>(std::count(expected.begin(), expected.end(), -1));
      }
      require((errors > 0) == (values == broken), "and refuses what is no number");
    }
  }
  use_isa("");
}

// What is computed of many rows, some of them changed, by as many threads.
std::vector<double> reduce(const std::string& isa, int threads) {
  use_isa(isa);
  constexpr int kRows = 48;
  constexpr int kVocabulary = 4001;
  LogitRows logits(std::make_shared<LogitStore>(), *choose_isa().kernels, Team::of(threads), kRows,
                   kVocabulary);
  std::mt19937 random(3);
  for (int r = 0; r < kRows; ++r) {
    const auto values = random_values(random, kVocabulary, 4.0F);
    float* row = logits.writable(r);
    std::copy(values.begin(), values.end(), row);
    std::fill(row + kVocabulary, row + LogitRows::stride_for(kVocabulary), -INFINITY);
  }
  std::vector<std::int64_t> every(kRows);
  for (int r = 0; r < kRows; ++r) every[static_cast<std::size_t>(r)] = r;
  const auto changed = logits.select(every.data(), kRows);
  for (int r = 0; r < kRows; ++r) {
    const std::int32_t ids[] = {logits.argmax(r), 7, 7};
    const float added[] = {-INFINITY, 1.0F, 2.0F};
    changed->add(r, ids, added, 3);
    changed->add(r, ids + 1, added + 1, 1);
    require(changed->argmax(r) != ids[0], "a banned token is not chosen");
    require(changed->value(r, 7) == (logits.value(r, 7) + 2.0F) + 1.0F, "changes add up");
    require(changed->read(r)[7] == changed->value(r, 7), "and are read");
    require(std::isfinite(logits.read(r)[ids[0]]), "the original keeps its values");
  }
  std::vector<double> out(4 * kRows);
  const LogitRows* both[] = {changed.get(), &logits};
  for (const LogitRows* of : both)
    of->for_each([&](int r) {
      double* mine = out.data() + 4 * r;
      mine[0] += of->sample(r, {0.8, 0, 1, 0}, 5) + of->sample(r, {0.8, 9, 0.9, 0.01}, 6);
      mine[1] += of->log_normalizer(r);
      mine[2] += of->entropy(r);
      mine[3] += of->margin(r);
    });
  logits.writable(9)[3] = NAN;
  bool refused = false;
  try {
    logits.for_each([&](int r) { logits.argmax(r); });
  } catch (const BackendError&) {
    refused = true;
  }
  require(refused, "the error of a row reaches the caller, whichever thread found it");
  return out;
}

// Random blocks of every kind: packed and unpacked they are what the file said, and a product is
// the same whatever rows share it, on all instruction sets.
void check_blocks(Source source) {
  constexpr int rows = 64;  // Panels come in pairs.
  constexpr int cols = 512;
  constexpr int most = 75;  // more rows than one call multiplies by tiles
  const BlockShape shape = block_shape(source);
  std::mt19937 random(static_cast<unsigned>(source));
  const std::size_t bytes = source_row_bytes(source, cols);
  std::vector<std::uint8_t> file(rows * bytes);
  for (auto& byte : file) byte = static_cast<std::uint8_t>(random() & 0x3FU);  // no huge factors
  Arena arena;
  const Matrix packed = make_matrix(arena, own_format(source), rows, cols);
  const Matrix plain = make_matrix(arena, Format::F32, rows, cols);
  std::vector<float> expected(cols);
  std::vector<float> got(cols);
  for (int row = 0; row < rows; ++row) {
    const std::uint8_t* from = file.data() + static_cast<std::size_t>(row) * bytes;
    pack_row(packed, row, source, from);
    pack_row(plain, row, source, from);
    unpack_row(packed, row, got.data());
    unpack_row(plain, row, expected.data());
    require(got == expected, "packing loses nothing");
  }
  require(static_cast<std::size_t>(packed.panels) * packed.panel_bytes * 50 <= file.size() * 51,
          "packed weights are at most 2 % larger than the file's");
  require(shape.size >= kGroup, "blocks are whole groups");
  std::vector<float> first;
  for (const std::string& isa : available_isas()) {
    use_isa(isa);
    const Kernels& kernels = *choose_isa().kernels;
    InputBuffer buffer;
    const Activations& input = buffer.shape(most, cols);
    std::mt19937 same(7);
    for (int row = 0; row < most; ++row)
      kernels.quantise(random_values(same, cols, 1.0F).data(), 0, cols / kGroup, row, input);
    std::vector<float> together(most * rows);
    kernels.matmul(packed, 0, rows / kLanes, input, 0, most, together.data(), rows, nullptr, false);
    for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 18, 27, 64, 70}) {
      std::vector<float> alone(most * rows);
      kernels.matmul(packed, 0, rows / kLanes, input, 0, count, alone.data(), rows, nullptr, false);
      require(std::equal(alone.begin(), alone.begin() + count * rows, together.begin()),
              "a product does not depend on the rows beside it");
    }
    if (first.empty()) first = together;
    require(together == first, "nor on the instructions");
  }
  use_isa("");
}

// Own functions against the C library's, which are good to about 1 ulp as well.
void check_functions() {
  std::mt19937_64 random(1);
  const auto close = [](double a, double b) {
    return std::fabs(a - b) <= 2 * std::fabs(std::nextafter(b, INFINITY) - b);
  };
  for (int i = 0; i < 100'000; ++i) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    const double x = std::ldexp(1.0 + unit, static_cast<int>(random() % 2000) - 1000);
    require(close(exact_log(x), std::log(x)), "logarithms");
    const double y = 1400 * (unit - 0.5);
    require(close(exact_exp(y), std::exp(y)), "exponentials");
    const auto angle = static_cast<float>(unit * 131072);
    float cosine = 0;
    float sine = 0;
    exact_turn(angle, cosine, sine);
    require(std::fabs(cosine - std::cos(double{angle})) < 1e-7, "cosines");
    require(std::fabs(sine - std::sin(double{angle})) < 1e-7, "sines");
  }
  require(exact_log(0) == -INFINITY && exact_exp(-800) == 0, "ends");
  require(exact_log(1) == 0 && exact_exp(0) == 1, "units");
  require(std::isnan(exact_log(-1)) && std::isnan(exact_exp(NAN)), "what is no number");
}

#if defined(PARADECODE_X86)
// A host that rounds up and flushes subnormal numbers gets the same bits, and keeps its state.
void check_float_state() {
  const auto expected = run(*make_model(Format::F32, false, 2), 7, false);
  const auto model = make_model(Format::F32, false, 2);
  constexpr unsigned odd = 0xDFC0;
  _mm_setcsr(odd);
  const auto got = run(*model, 7, false);
  const unsigned after = _mm_getcsr() & ~0x3FU;  // without the flags of what happened
  _mm_setcsr(0x1F80);
  require(got == expected, "the caller's rounding does not matter");
  require(after == odd, "the caller's state is left as it was");
}
#endif

// Items that share a call get the bits that each gets alone, on every instruction set.
void check_networks() {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const auto numbers = [&](int count) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& value : out) value = normal(random);
    return out;
  };
  const std::vector<float> square = numbers(64);
  const std::vector<float> row = numbers(8);
  const std::vector<float> last = numbers(24);
  const std::vector<NetworkTensor> tensors = {
      {8, 8, square.data()}, {1, 8, row.data()}, {8, 3, last.data()}};
  const std::vector<NetworkStep> steps = {
      {StepKind::Linear, {0}, {0}},
      {StepKind::Scale, {0}, {1}},
      {StepKind::Attention, {3, 4, 0, 1, 2}, {}, 2, 10000.0F},
      {StepKind::Add, {0, 5}, {}},
      {StepKind::Linear, {6}, {2}},
      {StepKind::Sigmoid, {7}, {}},
  };
  const std::vector<std::int64_t> ends = {1, 6, 6, 40};
  const std::vector<float> x = numbers(40 * 8);
  std::vector<std::int64_t> places(40);
  std::vector<std::int64_t> groups(40);
  for (std::int64_t i = 0; i < 40; ++i) {
    places[static_cast<std::size_t>(i)] = i;
    groups[static_cast<std::size_t>(i)] = i / 3;
  }
  std::vector<float> expected;
  for (const std::string& isa : available_isas()) {
    use_isa(isa);
    const Network network({8, 0, 0}, steps, tensors);
    std::vector<float> together(40 * 3);
    network.run({{x.data(), nullptr}, {nullptr, places.data()}, {nullptr, groups.data()}}, ends,
                together.data());
    if (expected.empty()) expected = together;
    require(together == expected, "instructions do not change a network's bits");
    std::int64_t first = 0;
    for (const std::int64_t end : ends) {
      std::vector<float> alone(static_cast<std::size_t>((end - first) * 3));
      network.run({{x.data() + first * 8, nullptr},
                   {nullptr, places.data() + first},
                   {nullptr, groups.data() + first}},
                  {end - first}, alone.data());
      require(std::equal(alone.begin(), alone.end(), together.begin() + first * 3),
              "nor do the items that share a call");
      first = end;
    }
  }
  use_isa("");
}

// A head's trees do not depend on instructions, threads, company or how rows came in; and bad input
// is refused.
void check_heads() {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  const auto numbers = [&](int count) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& value : out) value = normal(random);
    return out;
  };
  constexpr int kFeatures = 16;
  constexpr int kWidth = 24;
  constexpr int kTokens = 40;
  const auto into = numbers(kFeatures * kWidth);
  const auto table = numbers(kTokens * kWidth);
  const auto queries = numbers(2 * kWidth * 16);
  const auto keys = numbers(2 * kWidth * 8);
  const auto mixed = numbers(16 * kWidth);
  const auto last = numbers(kWidth * kTokens);
  const auto features = numbers(300 * kFeatures);
  std::vector<std::int64_t> tokens;
  for (int i = 0; i < 300; ++i) tokens.push_back(i * 7 % kTokens);
  const auto make = [&](Format format) {
    const auto network = [&](std::vector<int> widths, std::vector<NetworkStep> steps,
                             const std::vector<NetworkTensor>& tensors) {
      return std::make_shared<const Network>(std::move(widths), std::move(steps), tensors, format);
    };
    HeadNetworks out;
    out.width = kWidth;
    out.enter =
        network({kFeatures}, {{StepKind::Linear, {0}, {0}}}, {{kFeatures, kWidth, into.data()}});
    HeadBlock block;
    block.before = network({kWidth, 0},
                           {{StepKind::Lookup, {1}, {0}},
                            {StepKind::Join, {2, 0}, {}},
                            {StepKind::Linear, {3}, {1}},
                            {StepKind::Linear, {3}, {2}},
                            {StepKind::Join, {4, 5, 5, 0}, {}}},
                           {{kTokens, kWidth, table.data()},
                            {2 * kWidth, 16, queries.data()},
                            {2 * kWidth, 8, keys.data()}});
    block.after = network({16, kWidth}, {{StepKind::Linear, {0}, {0}}, {StepKind::Add, {2, 1}, {}}},
                          {{16, kWidth, mixed.data()}});
    block.heads = 2;
    block.kv_heads = 1;
    block.size = 8;
    block.frequencies = {1.0, 0.1, 0.01, 0.001};
    out.blocks = {block};
    out.outs = {
        network({kWidth}, {{StepKind::Linear, {0}, {0}}}, {{kWidth, kTokens, last.data()}})};
    return out;
  };
  const TreeLimits limits{12, 3, 4, 0.0, {}, {}};
  const TreeLimits noisy{9, 4, 3, 0.0, {0.8, 20, 0.95, 0.0}, {1, 2, 3}};
  const auto input = [&](const std::shared_ptr<HeadMemory>& memory, std::int64_t first,
                         std::int64_t end, const TreeLimits& wanted) {
    return HeadInput{memory.get(),
                     first,
                     features.data() + first * kFeatures,
                     {tokens.begin() + first, tokens.begin() + end},
                     first,
                     wanted};
  };
  const auto same = [](const DraftTree& a, const DraftTree& b) {
    return a.tokens == b.tokens && a.parents == b.parents && a.chances == b.chances;
  };
  for (const Format format : {Format::F32, Format::Q8}) {
    std::vector<DraftTree> expected;
    for (const std::string& isa : available_isas()) {
      setenv("PARADECODE_ISA", isa.c_str(), 1);
      for (const int threads : {1, 2, 4}) {
        DraftHead head(make(format), threads);
        const auto one = head.memory();
        const auto other = head.memory();
        head.draft({input(one, 0, 5, noisy), input(other, 0, 260, limits)});
        const auto trees =
            head.draft({input(one, 5, 299, limits), input(other, 260, 300, noisy)}).first;
        if (expected.empty()) expected = trees;
        require(trees[0].tokens.size() == 12 && same(trees[0], expected[0]) &&
                    same(trees[1], expected[1]),
                "instructions and threads do not change a head's tree");
        const auto alone = head.memory();
        require(same(head.draft({input(alone, 0, 299, limits)}).first[0], expected[0]),
                "nor do company and pieces");
        try {
          head.draft({input(alone, 299, 300, limits), input(alone, 299, 300, limits)});
          require(false, "a memory serves one request");
        } catch (const InvalidInput&) {
        }
      }
    }
  }
  unsetenv("PARADECODE_ISA");
}

}  // namespace

int main() {
  check_screen();
  check_networks();
  check_heads();
  check_functions();
  check_steps();
#if defined(PARADECODE_X86)
  check_float_state();
#endif
  for (int source = 0; source < kSources; ++source)
    if (!is_float(static_cast<Source>(source))) check_blocks(static_cast<Source>(source));
  const auto reduced = reduce("portable", 1);
  for (const std::string& isa : available_isas())
    for (const int threads : {1, 2, 4})
      require(reduce(isa, threads) == reduced, "neither threads nor instructions change bits");
  for (const Format format : {Format::Q4, Format::Q8, Format::BF16, Format::F16, Format::F32}) {
    std::vector<float> expected;
    const std::vector<std::string> isas = available_isas();
    for (const std::string& isa : isas) {
      use_isa(isa);
      // How threads share the work has nothing to do with the instructions.
      const bool first = isa == isas.front();
      for (const int threads : first ? std::vector{1, 2, 4} : std::vector{2}) {
        const auto model = make_model(format, format != Format::F32, threads);
        if (expected.empty()) expected = run(*model, 1, false);
        require(run(*model, 7, true) == expected, "chunks and pages do not change bits");
        require(run(*model, 40, false) == expected, "nor does one large forward");
        require(run(*model, 7, false, kHalves) == expected, "two halves are a layer");
        const auto some = run(*model, 40, false, kSome);
        require(some != expected, "what is left out is missing");
        require(run(*model, 9, true, kSome) == some, "chunks do not change bits of halves either");
        run_tree(*model);
      }
    }
    // Two models that share a team, each driven by a thread of its own.
    const auto one = make_model(format, format != Format::F32, 2);
    const auto second = make_model(format, format != Format::F32, 2);
    std::thread other([&] { require(run(*second, 3, true) == expected, "callers in parallel"); });
    require(run(*one, 5, false) == expected, "callers in parallel");
    other.join();
  }
  std::puts("ok");
}
