"""Programs of the device: prefill, decode steps, beam search, speculative decoding."""
