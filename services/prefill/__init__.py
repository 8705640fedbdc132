"""Turns windows of kept tokens into verdicts: one outcome for each camera, epoch, window and watch."""
