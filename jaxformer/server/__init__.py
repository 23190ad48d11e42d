"""A small server with OpenAI's HTTP interface, for trying out models."""
