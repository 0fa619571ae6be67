"""The data sets. Each file defines `load(places)`, which returns a DataSet.

`places` are the folders to look in, in order; a data set that needs no files ignores them.
"""

from ._shape import DataSet

__all__ = ["DataSet"]
