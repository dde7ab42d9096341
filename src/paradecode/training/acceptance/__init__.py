"""The trained parts of autoregressive budgets: SpecDec++'s head, the selector of delayed trees.

Both are fitted to what the engine did: a workload is decoded, and a recording budget keeps what the
budget in question will see, with what became of it.
"""
