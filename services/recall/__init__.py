"""recall: answers questions about cameras' past from the chapters that prefill holds."""
