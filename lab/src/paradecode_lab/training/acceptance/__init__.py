"""The trained parts of budgets: SpecDec++'s head, and the selector of delayed trees.

A workload is decoded in the engine with a budget that records what the trained budget will see, and
what was accepted. The parts are fitted to these records.
"""
