"""Methods for models that were trained anew, to be decoded in another way. All are lossy."""
