// The parts of the extension module; each function defines functions and classes.
#pragma once

#include <nanobind/nanobind.h>

namespace paradecode {

// Defines the class LogitRows and the function `logits_from`.
void define_logits(nanobind::module_& module);
// Defines the class Network.
void define_network(nanobind::module_& module);
// Defines the classes HeadMemory and DraftHead.
void define_head(nanobind::module_& module);
// Defines the classes NgramTable, Experience, StepSequence and CostCurve.
void define_steps(nanobind::module_& module);
// Defines the class Model.
void define_model(nanobind::module_& module);

}  // namespace paradecode
