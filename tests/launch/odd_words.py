"""Words that a shell, YAML or Kubernetes would change if they were not quoted."""

ODD = ("--data.train", 'it\'s $HOME $(id) `id` "x" \\ *.txt', "--train.steps", "3")
"""Options of training that a shell or Kubernetes would change."""
