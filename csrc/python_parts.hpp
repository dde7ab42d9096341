// The parts of the extension module: each defines its functions and classes.
#pragma once

#include <nanobind/nanobind.h>

namespace paradecode {

// The class LogitRows and `logits_from`.
void define_logits(nanobind::module_& module);
// The class Network.
void define_network(nanobind::module_& module);
// The classes HeadMemory and DraftHead.
void define_head(nanobind::module_& module);
// The classes NgramTable, Experience, StepSequence and CostCurve.
void define_steps(nanobind::module_& module);
// The class Model.
void define_model(nanobind::module_& module);

}  // namespace paradecode
