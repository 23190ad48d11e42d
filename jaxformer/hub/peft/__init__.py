"""PEFT's adapters: their files, their configuration and their effect on tensors."""
