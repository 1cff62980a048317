"""The paper's tables by name: every row trained and measured, the paper's figure and ours side by side.

tables    what the rows are and what the paper says: data
study     one table in one place: trainings, folders, the exact commands
running   all of it done, row by row, and written down
"""

from .running import reproduce
from .study import Study, make_study, plan, plan_lines
from .tables import list_tables, tables_lines
from .written import table_lines

__all__ = ["Study", "list_tables", "make_study", "plan", "plan_lines", "reproduce", "table_lines", "tables_lines"]
