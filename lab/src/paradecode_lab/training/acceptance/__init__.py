"""Train the learned parts of budgets: SpecDec++'s head, and the selector of delayed trees.

The engine decodes a workload with a budget that records the inputs of the trained budget, and which
tokens were accepted. The parts are then fitted to these records.
"""
