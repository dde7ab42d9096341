"""The losslessness certificate, which tests whether a decoder keeps its promise here."""
