#include "selftest.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace paradecode {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

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
  shape.outputs = 131;
  shape.hidden_size = 80;
  shape.context_length = 256;
  shape.stack.assign(2, {.attention = 0, .feed = 0, .groups = {0, 1}});
  shape.feeds.emplace_back().size = 100;
  AttentionShape& attention = shape.attentions.emplace_back();
  attention.heads = 6;
  attention.kv_heads = 2;
  attention.head_dim = 24;
  attention.bias = true;
  for (int i = 0; i < 12; ++i)
    attention.inverse_frequencies.push_back(std::pow(10000.0F, -static_cast<float>(i) / 12.0F));
  auto model = std::make_unique<Model>(shape, half_cache, threads);
  std::mt19937 random(1);
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    model->weights().set_format(name, format);
    return [&, name, rows, cols] {
      const auto values = random_values(random, static_cast<std::size_t>(rows * cols),
                                        2.0F / std::sqrt(static_cast<float>(cols)));
      model->weights().fill(name, 0, rows, Source::F32,
                            reinterpret_cast<const std::uint8_t*>(values.data()), 4 * cols);
    };
  };
  const auto vector = [&](const std::string& name, int size) {
    const std::vector<float> values(static_cast<std::size_t>(size), 1.0F);
    model->weights().set_vector(name, values.data(), size);
  };
  matrix("embed", 131, 80)();
  vector("norm", 80);
  for (int i = 0; i < shape.layers(); ++i) {
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
    vector(layer + "k.bias", 48);
    vector(layer + "v.bias", 48);
  }
  model->finish_loading(true);
  model->reserve(12);
  return model;
}

}  // namespace paradecode
