"""The trained parts of budgets: SpecDec++'s head, and the selector of delayed trees.

A workload is decoded in the engine with a budget that records the inputs of the trained budget, and
the accepted tokens. The parts are fitted to these records.
"""
