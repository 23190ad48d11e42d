"""What a training job needs before it is paid for: memory, time, and the slice that holds it."""
