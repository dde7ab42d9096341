#include "selftest.hpp"

#include <algorithm>
#include <cmath>

#include "errors.hpp"
#include "isa.hpp"

namespace paradecode {

namespace {

// A model of one layer whose head is `head`; tokens that are read are rows of an embedding beside.
std::unique_ptr<Model> headed_model(const std::vector<float>& head, int vocabulary) {
  ModelShape shape;
  shape.vocab_size = vocabulary;
  shape.outputs = vocabulary;
  shape.hidden_size = 256;
  shape.stack.push_back({.attention = 0, .feed = 0, .groups = {0, 1}});
  shape.feeds.emplace_back().size = 32;
  AttentionShape& attention = shape.attentions.emplace_back();
  attention.heads = attention.kv_heads = 1;
  attention.head_dim = 32;
  shape.context_length = 256;
  auto model = std::make_unique<Model>(shape, true, 2);
  std::mt19937 random(5);
  const auto fill = [&](const std::string& name, int rows, const std::vector<float>& values) {
    model->weights().fill(name, 0, rows, Source::F32,
                          reinterpret_cast<const std::uint8_t*>(values.data()),
                          4 * static_cast<std::int64_t>(values.size()) / rows);
  };
  const std::pair<const char*, int> matrices[] = {
      {"embed", vocabulary}, {"layers.0.q", 32},    {"layers.0.k", 32},  {"layers.0.v", 32},
      {"layers.0.o", 256},   {"layers.0.gate", 32}, {"layers.0.up", 32}, {"layers.0.down", 256}};
  for (const auto& [name, rows] : matrices) model->weights().set_format(name, Format::Q8);
  for (const auto& [name, rows] : matrices) {
    const bool narrow = rows == 256;
    fill(name, rows,
         random_values(random, static_cast<std::size_t>(rows * (narrow ? 32 : 256)), 0.1F));
  }
  const std::vector<float> ones(256, 1.0F);
  for (const char* name : {"norm", "layers.0.attn_norm", "layers.0.mlp_norm"})
    model->weights().set_vector(name, ones.data(), 256);
  model->weights().set_format("head", own_format(Source::Q8_0));
  fill("head", vocabulary, head);
  model->finish_loading(false);
  model->reserve(1);
  return model;
}

}  // namespace

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
    for (const auto& values : {head, broken}) {
      const auto model = headed_model(values, vocabulary);
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

}  // namespace paradecode
