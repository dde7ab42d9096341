"""Pictures, with one chart in each file: functions from figures and sheets to matplotlib's figures.

matplotlib (extra ``plots``) is imported only when something is drawn.
"""
