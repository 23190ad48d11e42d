"""The GLUE benchmark: the runs of its tasks, their scores and the submission files."""
