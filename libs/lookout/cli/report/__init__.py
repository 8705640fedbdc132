"""The page of a run: what was asked, what was answered, what it cost."""

from lookout.cli.report.page import PageFacts as PageFacts, Truth as Truth, write_page as write_page
from lookout.cli.report.pictures import Album as Album
from lookout.cli.report.run import TOPICS as TOPICS, FleetRecord as FleetRecord
