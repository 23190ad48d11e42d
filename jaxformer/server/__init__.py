"""A small server of models with the HTTP interface of OpenAI, for trying them."""
