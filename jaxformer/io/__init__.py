"""Files: paths, atomic writes, JSON, arrays, digests, and configurations as JSON."""
