"""Studies that train many small models: extrapolation, norms, families."""
