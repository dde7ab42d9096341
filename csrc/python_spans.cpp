#include "python_spans.hpp"

#include <optional>
#include <string>
#include <vector>

namespace paradecode {
namespace {

// The attribute names of Span as Python strings, which are made once.
struct SpanNames {
  PyObject* pages = PyUnicode_InternFromString("pages");
  PyObject* windows = PyUnicode_InternFromString("windows");
  PyObject* tokens = PyUnicode_InternFromString("tokens");
  PyObject* positions = PyUnicode_InternFromString("positions");
  PyObject* slots = PyUnicode_InternFromString("slots");
  PyObject* context = PyUnicode_InternFromString("context");
  PyObject* logits = PyUnicode_InternFromString("logits");
  PyObject* visible = PyUnicode_InternFromString("visible");
  PyObject* tail = PyUnicode_InternFromString("tail");
  PyObject* tail_positions = PyUnicode_InternFromString("tail_positions");
  PyObject* mask = PyUnicode_InternFromString("mask");
  PyObject* hidden = PyUnicode_InternFromString("hidden");
  PyObject* attention = PyUnicode_InternFromString("attention");
  PyObject* embeddings = PyUnicode_InternFromString("embeddings");
  PyObject* resume = PyUnicode_InternFromString("resume");
  PyObject* states = PyUnicode_InternFromString("states");
};

nb::object attribute(nb::handle object, PyObject* name) {
  PyObject* found = PyObject_GetAttr(object.ptr(), name);
  if (found == nullptr) throw nb::python_error();
  return nb::steal(found);
}

std::string shown(nb::handle value) { return nb::repr(value).c_str(); }

void expect_sequence(nb::handle values, const std::string& field) {
  if (!PyTuple_Check(values.ptr()) && !PyList_Check(values.ptr()))
    throw InvalidInput(field, shown(values), "give a tuple");
}

// Returns nothing if the object is not a whole number, or one that 64 bits cannot hold.
std::optional<std::int64_t> whole_number(nb::handle value) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) return std::nullopt;
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  int overflow = 0;
  const long long found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) return std::nullopt;
  return found;
}

// Returns a whole number from 0 to total - 1, or -1 for anything else.
int layer_number(nb::handle value, int total) {
  const std::optional<std::int64_t> layer = whole_number(value);
  return layer && *layer >= 0 && *layer < total ? static_cast<int>(*layer) : -1;
}

std::int64_t read_context(nb::handle value, const std::string& field) {
  const std::optional<std::int64_t> slots = whole_number(value);
  if (!slots) throw InvalidInput(field, shown(value), "give a whole number of slots");
  return *slots;
}

// Reads a number as a layer, and a pair of a number and a name as a half. The result's number is -1
// if the object is neither.
LayerPart layer_part(nb::handle value, int total) {
  if (!PyTuple_Check(value.ptr())) return {layer_number(value, total), true, true};
  if (PyTuple_GET_SIZE(value.ptr()) != 2) return {-1, false, false};
  const nb::object number = nb::borrow(PyTuple_GET_ITEM(value.ptr(), 0));
  const nb::object name = nb::borrow(PyTuple_GET_ITEM(value.ptr(), 1));
  const auto is = [&](const char* part) {
    return PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), part) == 0;
  };
  const bool attention = is("attention");
  const bool mlp = is("mlp");
  return {attention || mlp ? layer_number(number, total) : -1, attention, mlp};
}

std::vector<int> read_hidden(nb::handle hidden, const std::string& field, int total) {
  expect_sequence(hidden, field);
  std::vector<int> out;
  for (nb::handle value : hidden) {
    out.push_back(layer_number(value, total));
    if (out.back() < 0)
      throw InvalidInput(field, shown(value),
                         "give numbers of layers, from 0 to " + std::to_string(total - 1));
  }
  return out;
}

void expect_pair(nb::handle value, const std::string& field, Py_ssize_t size) {
  if (!PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) != size)
    throw InvalidInput(field, shown(value), "give a tuple of " + std::to_string(size));
}

nb::object item(nb::handle tuple, Py_ssize_t index) {
  return nb::borrow(PyTuple_GET_ITEM(tuple.ptr(), index));
}

}  // namespace

std::int64_t read_number(nb::handle value, const std::string& field) {
  const std::optional<std::int64_t> found = whole_number(value);
  if (!found || *found < -1 || *found > (std::int64_t{1} << 30))
    throw InvalidInput(field, shown(value), "give a whole number");
  return *found;
}

StateInput read_states(nb::handle states, const std::string& where) {
  StateInput out;
  if (states.is_none()) return out;
  expect_pair(states, where + "states", 4);
  const nb::object records = item(states, 0);
  expect_pair(records, where + "records", 2);
  const nb::object writes = item(states, 3);
  expect_sequence(writes, where + "writes");
  const View<std::int32_t> pages(item(records, 1), where + "records", 1);
  out.given = true;
  out.first = read_number(item(records, 0), where + "records");
  out.records.assign(pages.data(), pages.data() + pages.size());
  out.base = read_number(item(states, 1), where + "base");
  out.state = read_number(item(states, 2), where + "state");
  for (nb::handle write : writes) {
    expect_pair(write, where + "writes", 2);
    out.writes.emplace_back(read_number(item(write, 0), where + "writes"),
                            read_number(item(write, 1), where + "writes"));
  }
  return out;
}

WindowTables read_windows(nb::handle windows, const std::string& field) {
  WindowTables out;
  const nb::object items = nb::steal(PyMapping_Items(windows.ptr()));
  if (!items.is_valid()) {
    PyErr_Clear();
    throw InvalidInput(field, shown(windows), "give a dict of windows");
  }
  for (nb::handle item : items) {
    const nb::object window = nb::borrow(PyTuple_GET_ITEM(item.ptr(), 0));
    const nb::object table = nb::borrow(PyTuple_GET_ITEM(item.ptr(), 1));
    const std::optional<std::int64_t> number = whole_number(window);
    const bool pair = PyTuple_Check(table.ptr()) && PyTuple_GET_SIZE(table.ptr()) == 2;
    std::optional<std::int64_t> first;
    if (pair) first = whole_number(nb::borrow(PyTuple_GET_ITEM(table.ptr(), 0)));
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    if (!number || *number < 0 || *number > kMost || !first || *first < 0 || *first > kMost)
      throw InvalidInput(field, shown(item),
                         "give windows, each with its first page and its pages");
    const View<std::int32_t> pages(nb::borrow(PyTuple_GET_ITEM(table.ptr(), 1)), field, 1);
    out.held.push_back(
        {static_cast<int>(*number), *first, {pages.data(), pages.data() + pages.size()}});
  }
  return out;
}

std::vector<LayerPart> read_layers(nb::handle layers, int total) {
  std::vector<LayerPart> out;
  if (layers.is_none()) {
    for (int layer = 0; layer < total; ++layer) out.push_back({layer, true, true});
    return out;
  }
  expect_sequence(layers, "layers");
  for (nb::handle value : layers) {
    out.push_back(layer_part(value, total));
    if (out.back().layer < 0)
      throw InvalidInput("layers", shown(value),
                         "give numbers from 0 to " + std::to_string(total - 1) +
                             ", or halves (number, 'attention' or 'mlp')");
  }
  return out;
}

SpanArrays::SpanArrays(nb::handle span, std::size_t index, const ModelShape& shape) {
  static const SpanNames names;
  const std::string where = "spans[" + std::to_string(index) + "].";
  const auto vector = [&](PyObject* name, const char* field) {
    return View<std::int32_t>(attribute(span, name), where + field, 1);
  };
  const View<std::int32_t> pages = vector(names.pages, "pages");
  const View<std::int32_t> positions = vector(names.positions, "positions");
  const View<std::int32_t> slots = vector(names.slots, "slots");
  const View<std::int32_t> logits = vector(names.logits, "logits");
  const View<std::int32_t> tail = vector(names.tail, "tail");
  const View<std::int32_t> tail_positions = vector(names.tail_positions, "tail_positions");
  View<std::int32_t> tokens;
  View<std::int32_t> visible;
  View<std::int32_t> attention;
  View<std::uint8_t> given_mask;
  if (const nb::object list = attribute(span, names.visible); !list.is_none())
    visible = View<std::int32_t>(list, where + "visible", 1);
  if (const nb::object rows = attribute(span, names.attention); !rows.is_none())
    attention = View<std::int32_t>(rows, where + "attention", 1);
  if (const nb::object rows = attribute(span, names.mask); !rows.is_none())
    given_mask = View<std::uint8_t>(rows, where + "mask", 2);
  if (const nb::object rows = attribute(span, names.embeddings); !rows.is_none())
    embeddings = View<float>(rows, where + "embeddings", 2);
  if (const nb::object rows = attribute(span, names.resume); !rows.is_none())
    resume = View<float>(rows, where + "resume", 2);
  const std::int64_t rows = positions.size();
  if (embeddings && resume)
    throw InvalidInput(where + "resume", "both embeddings and resume", "give one kind of input");
  const std::int64_t given = resume ? rows : embeddings ? embeddings.size(0) : 0;
  if (given > rows)
    throw InvalidInput(where + "embeddings", given, "give at most one for each row");
  if (given < rows) {
    tokens = vector(names.tokens, "tokens");
    tokens.expect(where + "tokens", {rows});
  }
  slots.expect(where + "slots", {rows});
  tail_positions.expect(where + "tail_positions", {tail.size()});
  if (given_mask) given_mask.expect(where + "mask", {rows, tail.size() + rows});
  if (embeddings) embeddings.expect(where + "embeddings", {given, shape.hidden_size});
  if (resume) resume.expect(where + "resume", {rows, shape.hidden_size});
  windows = read_windows(attribute(span, names.windows), where + "windows");
  // One more is reserved, because a list that was given needs an address even if it is empty.
  std::size_t total = 1;
  for (const auto* view : std::initializer_list<const View<std::int32_t>*>{
           &pages, &tokens, &positions, &slots, &visible, &tail, &tail_positions, &logits,
           &attention})
    total += static_cast<std::size_t>(view->size());
  indices.reserve(total);
  const auto copied = [&](const View<std::int32_t>& view) -> const std::int32_t* {
    if (!view) return nullptr;
    const std::size_t begin = indices.size();
    indices.insert(indices.end(), view.data(), view.data() + view.size());
    return indices.data() + begin;
  };
  if (given_mask)
    mask.assign(given_mask.data(), given_mask.data() + given_mask.size(0) * given_mask.size(1));
  input = {.pages = copied(pages),
           .page_count = pages.size(),
           .windows = windows.tables(),
           .tokens = copied(tokens),
           .positions = copied(positions),
           .slots = copied(slots),
           .rows = rows,
           .context = read_context(attribute(span, names.context), where + "context"),
           .visible = copied(visible),
           .visible_count = visible.size(),
           .tail = copied(tail),
           .tail_positions = copied(tail_positions),
           .tail_count = tail.size(),
           .mask = given_mask ? mask.data() : nullptr,
           .logits = copied(logits),
           .logit_count = logits.size(),
           .attention = copied(attention),
           .attention_count = attention.size(),
           .hidden = read_hidden(attribute(span, names.hidden), where + "hidden", shape.layers()),
           .embeddings = embeddings.data(),
           .resume = resume.data(),
           .given_rows = given,
           .states = read_states(attribute(span, names.states), where)};
}

}  // namespace paradecode
