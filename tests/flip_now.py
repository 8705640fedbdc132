"""Importing this changes what the process decodes (`tests.flipping`)."""

from tests.flipping import begin

begin()
