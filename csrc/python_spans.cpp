#include "python_spans.hpp"

#include <nanobind/stl/vector.h>

namespace paradecode {
namespace {

// Attribute names of Span, made once.
struct SpanNames {
  PyObject* pages = PyUnicode_InternFromString("pages");
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
  PyObject* embeddings = PyUnicode_InternFromString("embeddings");
  PyObject* resume = PyUnicode_InternFromString("resume");
};

nb::object attribute(nb::handle object, PyObject* name) {
  PyObject* found = PyObject_GetAttr(object.ptr(), name);
  if (found == nullptr) throw nb::python_error();
  return nb::steal(found);
}

}  // namespace

SpanArrays::SpanArrays(nb::handle span, std::size_t index, const ModelShape& shape) {
  static const SpanNames names;
  const std::string where = "spans[" + std::to_string(index) + "].";
  const auto vector = [&](PyObject* name, const char* field) {
    return View<std::int32_t>(attribute(span, name), where + field, 1);
  };
  pages = vector(names.pages, "pages");
  positions = vector(names.positions, "positions");
  slots = vector(names.slots, "slots");
  logits = vector(names.logits, "logits");
  tail = vector(names.tail, "tail");
  tail_positions = vector(names.tail_positions, "tail_positions");
  if (const nb::object list = attribute(span, names.visible); !list.is_none())
    visible = View<std::int32_t>(list, where + "visible", 1);
  if (const nb::object rows = attribute(span, names.mask); !rows.is_none())
    mask = View<std::uint8_t>(rows, where + "mask", 2);
  if (const nb::object rows = attribute(span, names.embeddings); !rows.is_none())
    embeddings = View<float>(rows, where + "embeddings", 2);
  if (const nb::object rows = attribute(span, names.resume); !rows.is_none())
    resume = View<float>(rows, where + "resume", 2);
  const std::int64_t rows = positions.size();
  if (embeddings && resume)
    throw InvalidInput(where + "resume", "both embeddings and resume", "give one kind of input");
  if (!embeddings && !resume) {
    tokens = vector(names.tokens, "tokens");
    tokens.expect(where + "tokens", {rows});
  }
  slots.expect(where + "slots", {rows});
  tail_positions.expect(where + "tail_positions", {tail.size()});
  if (mask) mask.expect(where + "mask", {rows, tail.size() + rows});
  if (embeddings) embeddings.expect(where + "embeddings", {rows, shape.hidden_size});
  if (resume) resume.expect(where + "resume", {rows, shape.hidden_size});
  input = {.pages = pages.data(),
           .page_count = pages.size(),
           .tokens = tokens.data(),
           .positions = positions.data(),
           .slots = slots.data(),
           .rows = rows,
           .context = nb::cast<std::int64_t>(attribute(span, names.context)),
           .visible = visible.data(),
           .visible_count = visible.size(),
           .tail = tail.data(),
           .tail_positions = tail_positions.data(),
           .tail_count = tail.size(),
           .mask = mask.data(),
           .logits = logits.data(),
           .logit_count = logits.size(),
           .hidden = nb::cast<std::vector<int>>(attribute(span, names.hidden)),
           .embeddings = embeddings.data(),
           .resume = resume.data()};
  static const std::int32_t none = 0;
  if (visible && visible.data() == nullptr) input.visible = &none;  // empty, but given
}

}  // namespace paradecode
