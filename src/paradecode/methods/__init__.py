"""Methods. They import the core only: a decoder never sees a model, a batch or a device."""
