"""GLUE as a whole: the runs of its tasks, their scores and the files that are submitted."""
