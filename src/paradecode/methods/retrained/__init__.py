"""Methods for models that were retrained for another way of decoding. All of them are lossy."""
