// The arrays of one Span of paradecode.backends.interface, checked, in the form that the core
// reads.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"
#include "python_arrays.hpp"

namespace paradecode {

// Holds the arrays while a forward reads them. Indices are copied, because without the
// interpreter's lock another thread could change them after the check. Throws InvalidInput, which
// names the field.
struct SpanArrays {
  std::vector<std::int32_t> indices;
  std::vector<std::uint8_t> mask;
  WindowTables windows;
  View<float> embeddings, resume;
  SpanInput input;

  // `index` is that of the span in the call; `shape` is that of the model, for the widths.
  SpanArrays(nb::handle span, std::size_t index, const ModelShape& shape);
};

// Reads Span.windows. Throws InvalidInput, which names the field.
WindowTables read_windows(nb::handle windows, const std::string& field);

// Reads Span.states, or None. Throws InvalidInput; `where` comes before the field's name.
StateInput read_states(nb::handle states, const std::string& where);

// A whole number from -1 to 2^30. Throws InvalidInput.
std::int64_t read_number(nb::handle value, const std::string& field);

// Reads Span.layers: None (all `total` layers), or a tuple or list of numbers of layers and of
// halves, (number, "attention" or "mlp"). Throws InvalidInput, which names the field.
std::vector<LayerPart> read_layers(nb::handle layers, int total);

}  // namespace paradecode
