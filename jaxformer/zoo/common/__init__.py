"""What related systems share: builders, fields of config.json, and names of tensors and classes."""
