"""The one-file HTML report of a run, and its pictures. It takes plain data and knows neither training nor models."""

from .content import Grid, Report, Row, SpaceMap
from .page import write_report
from .pictures import retrieval_grid_png, save_pictures
from .projection import project_2d

__all__ = ["Grid", "Report", "Row", "SpaceMap", "project_2d", "retrieval_grid_png", "save_pictures", "write_report"]
