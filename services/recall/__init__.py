"""recall: questions about the past of cameras, answered over the chapters that prefill holds."""
