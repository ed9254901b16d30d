"""One pool of memory for the processor and the GPU: who fills it stops the machine."""
