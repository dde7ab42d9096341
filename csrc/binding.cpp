// Binds the core to Python: defines what all parts of the module share, and turns C++ errors into
// the exceptions of paradecode.core.errors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.hpp"
#include "exact.hpp"
#include "isa.hpp"
#include "machine.hpp"
#include "python_parts.hpp"

namespace paradecode {

namespace nb = nanobind;

namespace {

// Raise it, and INTERFACE in backends/native/__init__.py, whenever functions, classes, arguments or
// tuples change that Python meets here: another core beside the package is refused then.
constexpr int kInterface = 14;

void raise_as(const char* name, nb::object arguments) {
  const nb::object type = nb::module_::import_("paradecode.core.errors").attr(name);
  const nb::object error = type(*arguments);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidInput& e) {
    nb::object value = nb::none();
    if (const auto* number = std::get_if<std::int64_t>(&e.value)) value = nb::int_(*number);
    if (const auto* text = std::get_if<std::string>(&e.value)) value = nb::cast(*text);
    raise_as("InvalidInput", nb::make_tuple(e.field, value, e.fix));
  } catch (const BackendError& e) {
    raise_as("BackendError", nb::make_tuple(std::string(e.what())));
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::register_exception_translator(translate);
  m.attr("INTERFACE") = kInterface;

  m.def("available_isas", available_isas);
  m.def("chosen_isa", [] {
    const IsaChoice choice = choose_isa();
    return std::make_pair(std::string(choice.kernels->name), choice.reason);
  });
  m.def("read_bandwidth", read_bandwidth, nb::arg("bytes"), nb::arg("threads"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("dot_peak", dot_peak, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>());
  m.def("float_peak", float_peak, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>());

  m.def("in_own_state", [](nb::callable call) {
    const FloatState state;
    return nb::object(call());
  });
  define_logits(m);
  define_network(m);
  define_head(m);
  define_steps(m);
  define_model(m);
}

}  // namespace paradecode
