"""Find the method, its settings and its budget that pay for a workload on this machine."""
