"""recall: answers questions about the past of cameras from the chapters that prefill holds."""
