from dataclasses import dataclass

from core.search.computed_columns import METRIC_PREFIX, PARAM_PREFIX


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    title: str
    sort: str  # what `sort` calls it; empty: lists are not sorted by it
    numeric: bool = False  # True if its values are numbers or times, of which the highest come first
    metric: bool = False  # True if it shows the last value of the metric of this name
    param: str = ""  # the parameter that it shows; empty: none


COLUMNS = (
    Column("machine", "Machine", "machine"),
    Column("project", "Project", "project"),
    Column("created", "Submitted", "created", numeric=True),
    Column("duration", "Duration", "duration", numeric=True),
    Column("cost", "Cost", "cost", numeric=True),
    Column("finished", "Finished", "finished", numeric=True),
    Column("attempt", "Attempt", "", numeric=True),
    Column("exit", "Exit code", "", numeric=True),
)
"""The columns besides state and name, which are always shown."""
STATE = Column("state", "State", "state")
NAME = Column("name", "Job", "name")
_DEFAULT = ("machine", "project", "created", "duration", "cost")


def shown_columns(names: tuple[str, ...]) -> list[Column]:
    """Return the columns of these names, each once; other names are metrics or parameters. None: the default."""
    known = {column.name: column for column in COLUMNS}
    wanted = dict.fromkeys(names or _DEFAULT)
    return [STATE, NAME, *(known.get(name) or _measured(name) for name in wanted)]


def _measured(name: str) -> Column:
    if name.startswith(PARAM_PREFIX):
        param = name.removeprefix(PARAM_PREFIX)
        return Column(name, param, name, numeric=True, param=param)
    return Column(name, name, f"{METRIC_PREFIX}{name}", numeric=True, metric=True)
