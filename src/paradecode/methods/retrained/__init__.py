"""Methods for models that were trained again for another way of decoding. All of them are lossy."""
