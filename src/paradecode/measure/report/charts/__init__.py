"""One file a chart: each makes a :class:`paradecode.measure.report.drawing.Drawing` of a sheet."""
