#include "python_shape.hpp"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "errors.hpp"

namespace nb = nanobind;

namespace paradecode {
namespace {

// A dictionary, whose entries are read by name.
class Record {
 public:
  Record(nb::handle record, std::string where) : record_(record), where_(std::move(where)) {
    if (!PyDict_Check(record.ptr())) refuse("", "give a dictionary");
  }
  // Throws InvalidInput if there are entries that nobody has read.
  void finish() const {
    if (static_cast<std::size_t>(PyDict_Size(record_.ptr())) != read_)
      refuse("", "give only the entries that the core knows");
  }

  nb::handle object(const char* name) {
    PyObject* found = PyDict_GetItemString(record_.ptr(), name);
    if (found == nullptr) refuse(name, "give it");
    ++read_;
    return found;
  }
  std::int64_t wide(const char* name) {
    const nb::handle value = object(name);
    int overflow = 0;
    if (!PyLong_Check(value.ptr()) || PyBool_Check(value.ptr()))
      refuse(name, "give a whole number");
    const long long found = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow != 0) refuse(name, "give a whole number of 64 bits");
    return found;
  }
  int whole(const char* name) {
    const std::int64_t value = wide(name);
    if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
      refuse(name, "give a whole number of 32 bits");
    return static_cast<int>(value);
  }
  float number(const char* name) { return as_float(object(name), name); }
  bool flag(const char* name) {
    const nb::handle value = object(name);
    if (!PyBool_Check(value.ptr())) refuse(name, "give True or False");
    return value.ptr() == Py_True;
  }
  // The index of a word.
  int choice(const char* name, std::initializer_list<const char*> words) {
    const nb::handle value = object(name);
    int index = 0;
    std::string known;
    for (const char* word : words) {
      if (PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), word) == 0)
        return index;
      known += (index++ == 0 ? "" : ", ") + std::string(word);
    }
    throw InvalidInput(where_ + name, std::string(nb::repr(value).c_str()), "use " + known);
  }
  std::vector<float> numbers(const char* name) {
    std::vector<float> out;
    for (nb::handle value : sequence(name)) out.push_back(as_float(value, name));
    return out;
  }
  std::vector<int> wholes(const char* name) {
    std::vector<int> out;
    for (const float value : numbers(name)) {
      if (std::abs(value) >= 1 << 24) refuse(name, "give whole numbers below 2^24");
      out.push_back(static_cast<int>(value));
    }
    return out;
  }
  template <class Read>
  void each(const char* name, Read read) {
    int index = 0;
    for (nb::handle value : sequence(name)) {
      Record own(value, where_ + name + "[" + std::to_string(index++) + "].");
      read(own);
      own.finish();
    }
  }

 private:
  [[noreturn]] void refuse(const char* name, const char* fix) const {
    throw InvalidInput(where_ + name, std::monostate(), fix);
  }
  nb::handle sequence(const char* name) {
    const nb::handle values = object(name);
    if (!PyList_Check(values.ptr()) && !PyTuple_Check(values.ptr())) refuse(name, "give a list");
    return values;
  }
  float as_float(nb::handle value, const char* name) const {
    const double found = PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())
                             ? PyFloat_AsDouble(value.ptr())
                             : NAN;
    if (PyErr_Occurred() != nullptr) PyErr_Clear();
    if (!std::isfinite(found)) refuse(name, "give a finite number");
    return static_cast<float>(found);
  }

  nb::handle record_;
  std::string where_;
  std::size_t read_ = 0;
};

NormPlaces read_norm(Record& from, bool* shared = nullptr) {
  const int choice = shared == nullptr
                         ? from.choice("norm", {"none", "before", "after", "both"})
                         : from.choice("norm", {"none", "before", "after", "both", "shared"});
  if (shared != nullptr) *shared = choice == 4;
  return {(choice & 1) != 0, (choice & 2) != 0};
}

Activation read_activation(Record& from, const char* name) {
  return static_cast<Activation>(
      from.choice(name, {"silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu_oai"}));
}

AttentionShape read_attention(Record& from) {
  AttentionShape out;
  out.heads = from.whole("heads");
  out.kv_heads = from.whole("kv_heads");
  out.head_dim = from.whole("head_dim");
  out.window = from.whole("window");
  out.scale = from.number("scale");
  out.softcap = from.number("softcap");
  out.norm = read_norm(from);
  out.qk_norm = static_cast<HeadNorm>(from.choice("qk_norm", {"none", "head", "all"}));
  out.norm_turned = from.flag("norm_turned");
  out.value_norm = from.flag("value_norm");
  out.keys_as_values = from.flag("keys_as_values");
  out.sinks = from.flag("sinks");
  out.bias = from.flag("bias");
  out.output_bias = from.flag("output_bias");
  out.gated = from.flag("gated");
  out.query_rank = from.whole("query_rank");
  out.out_factor = from.number("out_factor");
  out.growth = from.number("growth");
  out.growth_every = from.wide("growth_every");
  out.slopes = from.numbers("slopes");
  out.rope_factor = from.number("rope_factor");
  out.inverse_frequencies = from.numbers("inverse_frequencies");
  return out;
}

StateShape read_state(Record& from, int hidden_size) {
  StateShape out;
  out.hidden_size = hidden_size;
  out.norm = read_norm(from, &out.shares_norm);
  out.out_factor = from.number("out_factor");
  out.width = from.whole("width");
  out.tap_bias = from.flag("tap_bias");
  out.bias = from.flag("bias");
  out.heads = from.whole("heads");
  if (out.heads == 0) return out;
  out.key_heads = from.whole("key_heads");
  out.key_dim = from.whole("key_dim");
  out.value_dim = from.whole("value_dim");
  out.delta = from.choice("rule", {"add", "delta"}) == 1;
  out.decay = static_cast<Decay>(from.choice("decay", {"softplus", "logsigmoid", "fixed"}));
  out.channels = from.flag("channels");
  out.decay_rank = from.whole("decay_rank");
  out.decay_divisor = from.number("decay_divisor");
  out.strength = static_cast<Strength>(from.choice("strength", {"one", "step", "sigmoid"}));
  out.unit = from.flag("unit");
  out.tiled = from.flag("tiled");
  out.scale = from.number("scale");
  out.skip = from.flag("skip");
  out.gate = static_cast<Gate>(from.choice("gate", {"none", "before", "after"}));
  out.out_norm = static_cast<OutNorm>(from.choice("out_norm", {"none", "head", "groups"}));
  out.norm_groups = from.whole("norm_groups");
  out.least_step = from.number("least_step");
  out.most_step = from.number("most_step");
  out.output_bias = from.flag("output_bias");
  out.out_epsilon = from.number("out_eps");
  const std::vector<float> factors = from.numbers("factors");
  expect_range("factors", static_cast<std::int64_t>(factors.size()), 6, 6);
  std::copy(factors.begin(), factors.end(), out.factors.begin());
  return out;
}

MixtureShape read_mixture(Record& from) {
  MixtureShape out;
  out.experts = from.whole("experts");
  out.chosen = from.whole("chosen");
  out.expert_size = from.whole("expert_size");
  out.shared_size = from.whole("shared_size");
  out.shared_gated = from.flag("shared_gated");
  out.groups = from.whole("groups");
  out.chosen_groups = from.whole("chosen_groups");
  out.score = static_cast<Score>(from.choice("score", {"softmax", "sigmoid", "relu"}));
  out.bias = from.flag("bias");
  out.logit_bias = from.flag("logit_bias");
  out.expert_bias = from.flag("expert_bias");
  out.biased_weights = from.flag("biased_weights");
  out.normalised = from.flag("normalised");
  out.scaled = from.flag("scaled");
  out.scale = from.number("scale");
  return out;
}

FeedShape read_feed(Record& from) {
  FeedShape out;
  out.size = from.whole("size");
  out.norm = read_norm(from, &out.shares_norm);
  out.activation = read_activation(from, "activation");
  out.gated = from.flag("gated");
  out.bias = from.flag("bias");
  out.gate_factor = from.number("gate_factor");
  out.out_factor = from.number("out_factor");
  from.each("mixture", [&](Record& mixture) { out.mixture = read_mixture(mixture); });
  return out;
}

LayerShape read_layer(Record& from) {
  LayerShape out;
  out.attention = from.whole("attention");
  out.keys_of = from.whole("keys_of");
  out.states = from.wholes("states");
  out.feed = from.whole("feed");
  out.reads_token = from.flag("reads_token");
  out.token_activation = read_activation(from, "token_activation");
  const std::vector<int> sizes = from.wholes("groups");
  for (int group = 0; group < static_cast<int>(sizes.size()); ++group) {
    const int size = sizes[static_cast<std::size_t>(group)];
    expect_range("groups", size, 1, 5);
    out.groups.insert(out.groups.end(), static_cast<std::size_t>(size), group);
  }
  out.ladder = from.flag("ladder");
  out.scaled = from.flag("scaled");
  return out;
}

}  // namespace

ModelShape read_shape(nb::handle record) {
  Record from(record, "");
  ModelShape out;
  out.vocab_size = from.whole("vocab_size");
  out.outputs = from.whole("outputs");
  out.hidden_size = from.whole("hidden_size");
  out.context_length = from.whole("context_length");
  out.norm_epsilon = from.number("norm_eps");
  out.layer_norm = from.choice("norm_kind", {"rms", "layer"}) == 1;
  out.norm_bias = from.flag("norm_bias");
  out.embed_factor = from.number("embed_factor");
  out.embed_norm = from.flag("embed_norm");
  out.positions = from.whole("positions");
  out.token_width = from.whole("token_width");
  out.token_rows = from.whole("token_rows");
  out.head_bias = from.flag("head_bias");
  out.logit_factor = from.number("logit_factor");
  out.softcap = from.number("softcap");
  out.canvas = from.flag("canvas");
  from.each("attentions", [&](Record& own) { out.attentions.push_back(read_attention(own)); });
  from.each("states", [&](Record& own) { out.states.push_back(read_state(own, out.hidden_size)); });
  from.each("feeds", [&](Record& own) { out.feeds.push_back(read_feed(own)); });
  int states = 0;
  from.each("layers", [&](Record& own) {
    out.stack.push_back(read_layer(own));
    out.stack.back().first_state = states;
    states += static_cast<int>(out.stack.back().states.size());
  });
  from.finish();
  return out;
}

}  // namespace paradecode
