"""PEFT adapters: their files, their configuration and their effect on tensors."""
