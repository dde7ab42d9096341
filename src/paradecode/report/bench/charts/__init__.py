"""One file a chart: each makes a :class:`paradecode.report.bench.drawing.Drawing` of a sheet."""
