"""The experiments and figures behind the commands of `jaxformer lab`."""
