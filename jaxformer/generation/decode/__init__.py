"""What runs on the device: prefill, decode steps, beam search, speculative decoding."""
