"""Charts of results, one in each file: functions that draw figures and sheets with matplotlib.

matplotlib (extra ``plots``) is imported only when a chart is drawn.
"""
