"""Models on the Hugging Face hub, through ``huggingface_hub``: names, downloads, uploads."""
