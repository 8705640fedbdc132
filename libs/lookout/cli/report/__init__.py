"""The page of a run: what was asked, what was answered, what it cost."""

from lookout.cli.report.page import PageFacts, Truth, write_page
from lookout.cli.report.pictures import Album
from lookout.cli.report.run import TOPICS, FleetRecord

__all__ = ["TOPICS", "Album", "FleetRecord", "PageFacts", "Truth", "write_page"]
