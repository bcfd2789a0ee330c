"""Overrides of runs whose pages and kernels' graphs no test looks at."""

# Drawing pages and tracing the network take most of a tiny run's seconds.
QUICK = ("report.html=false", "report.plot=false", "kernel.fuse=false", "measure.variants=[]")
