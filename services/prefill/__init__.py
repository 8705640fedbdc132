"""Windows of kept tokens become verdicts: one outcome for each camera, epoch, window and watch."""
