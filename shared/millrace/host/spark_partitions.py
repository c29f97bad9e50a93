"""The number of state partitions of a query: more than it can use cost time in every batch.

Spark gives every stateful operator ``spark.sql.shuffle.partitions`` of them, 200 unless told otherwise. Each
is a task, a call of a Python worker and a state store that commits, in every batch, with no row as well.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark.sql import SparkSession

#: Into how many partitions state is divided.
PARTITIONS_CONF: Final = "spark.sql.shuffle.partitions"
#: More partitions than so many for each core of this machine only wait for each other.
_MOST_PER_CORE: Final = 4

_log = logging.getLogger("millrace.keyed")


def too_many_partitions(partitions: int, key_groups: int, cores: int | None) -> str | None:
    """Return what is wrong with a number of partitions and what to do; ``None`` if nothing is.

    More partitions than key groups are always in vain, since a group is in one of them. On one machine more
    than a few for each core are, too; how many cores a cluster has is not known here.

    Args:
        partitions: Spark's shuffle partitions.
        key_groups: The key groups of the query, the most that an operator of it has.
        cores: Cores of a local master; ``None``: it is a cluster.

    Example:
        >>> for told in too_many_partitions(200, 64, 2).split(": "):
        ...     print(told)
        spark.sql.shuffle.partitions is 200
        only 64 key groups share them, and each takes time in every batch
        set it to 2, the number of cores, before the first batch (a checkpoint keeps what it began with)
        >>> too_many_partitions(8, 64, 2), too_many_partitions(200, 256, None)
        (None, None)
    """
    if partitions > key_groups:
        why = f"only {key_groups} key groups share them"
    elif cores is not None and partitions > _MOST_PER_CORE * cores:
        why = f"there are {cores} cores"
    else:
        return None
    if cores is None:
        good = f"the number of cores that the job has, at most {key_groups}"
    elif cores > key_groups:
        good = f"{key_groups}"
    else:
        good = f"{cores}, the number of cores"
    return (
        f"{PARTITIONS_CONF} is {partitions}: {why}, and each takes time in every batch: "
        f"set it to {good}, before the first batch (a checkpoint keeps what it began with)"
    )


def warn_of_partitions(session: SparkSession, key_groups: int) -> None:
    """Say so in the log where a session has too many partitions for a query.

    Args:
        session: The session.
        key_groups: The key groups of the query, the most that an operator of it has.
    """
    from millrace.runtime.session import local_cores

    found = session.conf.get(PARTITIONS_CONF) or ""
    if found.isdigit():  # some platforms know words, too
        cores = local_cores(session.conf.get("spark.master", None) or "")
        if (told := too_many_partitions(int(found), key_groups, cores)) is not None:
            _log.warning("%s", told)
