#include "selftest.hpp"

#include <algorithm>
#include <cmath>

#include "errors.hpp"
#include "isa.hpp"

namespace paradecode {
namespace {

constexpr int kTokens = 77;
constexpr int kHidden = 40;
constexpr int kCanvas = 7;

// Four layers of two kinds, with experts beside an MLP, of sizes that nothing divides.
std::unique_ptr<Model> gemma_model(Format format, bool half_cache, int threads) {
  ModelShape shape;
  shape.vocab_size = shape.outputs = kTokens;
  shape.hidden_size = kHidden;
  shape.context_length = 128;
  shape.embed_factor = 6.3F;
  shape.softcap = 20.0F;
  shape.canvas = true;
  AttentionShape near;
  near.heads = 6;
  near.kv_heads = 3;
  near.head_dim = 12;
  near.window = 5;
  near.scale = 1.0F;
  near.norm = {true, true};
  near.qk_norm = HeadNorm::Head;
  near.value_norm = true;
  near.inverse_frequencies = {1.0F, 0.1F, 0.01F};
  AttentionShape far = near;
  far.kv_heads = 1;
  far.head_dim = 40;
  far.window = 0;
  far.keys_as_values = true;
  far.inverse_frequencies = {0.5F, 0.02F};
  shape.attentions = {near, far};
  FeedShape& feed = shape.feeds.emplace_back();
  feed.size = 52;
  feed.norm = {true, true};
  feed.activation = Activation::GeluTanh;
  feed.mixture.experts = 5;
  feed.mixture.chosen = 2;
  feed.mixture.expert_size = 36;
  feed.mixture.normalised = true;
  feed.mixture.scaled = true;
  for (int i = 0; i < 4; ++i)
    shape.stack.push_back({.attention = i % 2, .feed = 0, .groups = {0, 1}, .scaled = true});
  auto model = std::make_unique<Model>(shape, half_cache, threads);
  std::mt19937 random(3);
  struct Named {
    std::string name;
    int rows, cols;
  };
  std::vector<Named> matrices = {{"embed", kTokens, kHidden},
                                 {"guess.gate", 52, kHidden},
                                 {"guess.up", 52, kHidden},
                                 {"guess.down", kHidden, 52}};
  std::vector<std::pair<std::string, int>> vectors = {{"norm", kHidden}, {"guess.norm", kHidden}};
  for (int i = 0; i < shape.layers(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    const AttentionShape& own = shape.attention(i);
    matrices.push_back({layer + "q", 6 * own.head_dim, kHidden});
    matrices.push_back({layer + "k", own.kv_heads * own.head_dim, kHidden});
    if (i % 2 == 0) matrices.push_back({layer + "v", own.kv_heads * own.head_dim, kHidden});
    matrices.push_back({layer + "o", kHidden, 6 * own.head_dim});
    matrices.push_back({layer + "router", 5, kHidden});
    for (int mlp = -1; mlp < 5; ++mlp) {
      const std::string place = mlp < 0 ? layer : layer + "experts." + std::to_string(mlp) + ".";
      const int inner = mlp < 0 ? 52 : 36;
      matrices.push_back({place + "gate", inner, kHidden});
      matrices.push_back({place + "up", inner, kHidden});
      matrices.push_back({place + "down", kHidden, inner});
    }
    for (const char* name : {"attn_norm", "mlp_norm", "after_attn", "after_mlp", "experts_norm",
                             "after_experts", "after_dense", "router.scale"})
      vectors.emplace_back(layer + name, kHidden);
    vectors.emplace_back(layer + "router.gain", 5);
    vectors.emplace_back(layer + "q_norm", own.head_dim);
    vectors.emplace_back(layer + "k_norm", own.head_dim);
    vectors.emplace_back(layer + "scale", 1);
    vectors.emplace_back(layer + "canvas_scale", 1);
  }
  for (const Named& each : matrices)
    model->weights().set_format(each.name, each.name.ends_with("router") ? Format::F32 : format);
  for (const auto& [name, rows, cols] : matrices) {
    const auto values = random_values(random, static_cast<std::size_t>(rows * cols),
                                      1.0F / std::sqrt(static_cast<float>(cols)));
    model->weights().fill(name, 0, rows, Source::F32,
                          reinterpret_cast<const std::uint8_t*>(values.data()), 4 * cols);
  }
  for (const auto& [name, size] : vectors) {
    const std::vector<float> values(static_cast<std::size_t>(size), 0.9F);
    model->weights().set_vector(name, values.data(), size);
  }
  model->finish_loading(true);
  model->reserve(12);
  return model;
}

// Logits of a canvas with and without a guess, behind a text of 20 tokens, beside another text.
std::vector<float> run(Model& model) {
  const std::vector<std::int32_t> pages = {0, 1, 2, 3, 4};
  const std::vector<std::int32_t> other_pages = {7, 9};
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> places;
  for (int i = 0; i < 40; ++i) tokens.push_back((i * 37 + 5) % kTokens), places.push_back(i);
  const std::vector<std::int32_t> unstored(kCanvas, -1);
  const std::vector<std::uint8_t> all(kCanvas * kCanvas, 1);
  SpanInput text;
  text.pages = pages.data();
  text.page_count = 5;
  text.tokens = tokens.data();
  text.positions = text.slots = places.data();
  text.rows = 20;
  SpanInput other = text;
  other.pages = other_pages.data();
  other.page_count = 2;
  other.rows = 19;
  SpanInput canvas = text;
  canvas.rows = kCanvas;
  canvas.context = 20;
  canvas.positions = places.data() + 20;
  canvas.slots = unstored.data();
  canvas.mask = all.data();
  canvas.canvas = true;
  canvas.logits = places.data();
  canvas.logit_count = kCanvas;
  const std::vector<LayerPart> layers = {
      {0, true, true}, {1, true, true}, {2, true, true}, {3, true, true}};
  model.forward({text}, layers);
  const auto first = model.forward({canvas, other}, layers).logits->tempered(0.5F);
  const std::int32_t changed = 3;
  const float more = 2.0F;
  first->add(1, &changed, &more, 1);
  canvas.guess = first.get();
  const ForwardResult second = model.forward({other, canvas}, layers);
  std::vector<float> out;
  for (const auto* logits : {first.get(), second.logits.get()})
    for (int r = 0; r < kCanvas; ++r) {
      out.insert(out.end(), logits->read(r), logits->read(r) + kTokens);
      require(logits->argmax(r) >= 0, "logits of a canvas are numbers");
    }
  return out;
}

}  // namespace

void check_gemma() {
  for (const Format format : {Format::Q4, Format::Q8, Format::BF16, Format::F32})
    for (const bool half : {true, false}) {
      use_isa("portable");
      const std::vector<float> wanted = run(*gemma_model(format, half, 1));
      for (const std::string& isa : available_isas()) {
        use_isa(isa);
        for (const int threads : {1, 3})
          require(run(*gemma_model(format, half, threads)) == wanted,
                  "a canvas has the same bits on all processors and threads");
      }
    }
  use_isa("");
}

}  // namespace paradecode
