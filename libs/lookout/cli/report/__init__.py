"""Writes the page of a run: questions, answers and costs."""

from lookout.cli.report.backtest import (
    PastFacts as PastFacts,
    write_clip_page as write_clip_page,
    write_past_page as write_past_page,
)
from lookout.cli.report.page import PageFacts as PageFacts, Truth as Truth, write_page as write_page
from lookout.cli.report.pictures import Album as Album, FootageAlbum as FootageAlbum, Pictures as Pictures
from lookout.cli.report.run import TOPICS as TOPICS, FleetRecord as FleetRecord
from lookout.cli.report.shift import report as report
