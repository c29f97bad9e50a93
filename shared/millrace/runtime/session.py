"""The Spark session of a streaming job: the defaults, the locked jars, a quiet terminal."""

from __future__ import annotations

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.errors import UserError
from millrace.local.class_archive import archive_flags, keep_archive
from millrace.local.jars import ensure_jars, jar_paths
from millrace.local.java import JavaError
from millrace.local.java_check import check_java
from millrace.local.private import current_umask
from millrace.runtime.defaults import LOCAL_DEFAULTS, QUICK_START, STEADY_RUN, STREAMING_DEFAULTS
from millrace.runtime.launch import log_configuration, refuse_secret_arguments, submit_arguments
from millrace.runtime.prefork import launcher
from millrace.runtime.scratch import scratch_folder

_ARCHIVE = "spark"
#: Folders of sessions, and of nothing else; short, see :func:`spark_session`.
SCRATCH_PREFIX = "millrace-s-"
#: How long the JVM may take to end.
_LAST_S = 60.0
_LOCAL_FS = "hadoop-bare-naked-local-fs"


class SessionError(UserError):
    """A Spark session cannot be started as asked for."""


def session_conf(
    *,
    master: str,
    shuffle_partitions: int | None = None,
    driver_memory: str = "1g",
    quick_start: bool = False,
    log_file: Path | None = None,
    scratch: Path,
    conf: Mapping[str, str] | None = None,
    writes_archive: bool = False,
) -> dict[str, str]:
    """Return the complete configuration of a session, as Spark takes it.

    Args:
        master: Spark master URL; ``local[N]`` becomes ``local[N, 4]`` so that a task is tried again.
        shuffle_partitions: Number of state partitions (frozen in a checkpoint); default: the cores.
        driver_memory: Heap of the driver, e.g. ``"1g"``.
        quick_start: Let the JVM compile less: for runs of a minute or two (see ``QUICK_START``).
        log_file: Where Spark's own log goes.
        scratch: Folder for sockets and temporary files, removed by the caller.
        conf: Settings that override everything else.
        writes_archive: Where there is no archive of Spark's classes, let a JVM with a local master write one.

    Raises:
        SecretInArguments: A secret stands in a setting that becomes an argument of the JVM.
    """
    cores = local_cores(master)
    jars = jar_paths("spark")
    archive = _archive_flags(scratch if writes_archive else None) if cores is not None else []
    refuse_secret_arguments(conf or {})
    options = [f"-Dlog4j2.configurationFile={log_configuration(scratch).as_uri()}", "-Duser.timezone=UTC"]
    if quick_start:
        options.append(QUICK_START.value)
    elif cores is not None:
        options += STEADY_RUN
    options += archive
    options.append(f"-Dmillrace.log.file={log_file or os.devnull}")
    merged = {name: default.value for name, default in STREAMING_DEFAULTS.items()}
    merged |= {
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.sql.shuffle.partitions": str(shuffle_partitions or cores or 8),
        "spark.jars": ",".join(str(p) for p in jars),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        # Hadoop gives folders and files rights by a umask of its own, which lets everybody read.
        "spark.hadoop.fs.permissions.umask-mode": f"{current_umask():03o}",
    }
    if cores is not None:
        merged |= {name: default.value for name, default in LOCAL_DEFAULTS.items()}
        merged["spark.master"] = f"local[{cores}, 4]"
        # Named in fs.file.impl, it is needed before spark.jars are there.
        merged["spark.driver.extraClassPath"] = ":".join(str(p) for p in jars if _LOCAL_FS in p.name)
        merged["spark.local.dir"] = str(scratch / "spark")
        merged["spark.python.unix.domain.socket.dir"] = str(scratch / "sockets")
        merged["spark.driver.bindAddress"] = "127.0.0.1"
        merged["spark.driver.host"] = "127.0.0.1"
    return merged | dict(conf or {})


def spark_metrics(host: str, port: int | None) -> dict[str, str]:
    """Return the settings by which Spark shows its own page and its own metrics for Prometheus.

    Args:
        host: The address to listen on.
        port: The port; ``None``: neither is shown.

    Raises:
        UserError: The address cannot be had.

    >>> spark_metrics("127.0.0.1", None)
    {}
    """
    if port is None:
        return {}
    try:
        socket.create_server((host, port)).close()
    except OSError as error:  # better said than by the JVM
        raise UserError(
            f"metrics: Spark cannot listen on {host}:{port} ({error}): set another metrics.spark_port"
        ) from error
    sink = "spark.metrics.conf.*.sink.prometheusServlet"
    return {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.ui.prometheus.enabled": "true",
        "spark.port.maxRetries": "0",  # another port would not be found
        f"{sink}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{sink}.path": "/metrics/prometheus",
        "spark.metrics.namespace": "millrace",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.driver.bindAddress": host,
    }


def local_cores(master: str) -> int | None:
    """Return the number of cores of a local master, ``None`` for a cluster.

    >>> local_cores("local[2]"), local_cores("local[3, 4]"), local_cores("spark://host:7077")
    (2, 3, None)
    """
    found = re.fullmatch(r"local(\[\s*(\*|\d+)\s*(,\s*\d+\s*)?\])?", master)
    if found is None:
        return None
    if found[1] is None:
        return 1
    return (os.cpu_count() or 1) if found[2] == "*" else int(found[2])


@contextmanager
def spark_session(
    app: str,
    *,
    master: str = "local[*]",
    shuffle_partitions: int | None = None,
    driver_memory: str = "1g",
    quick_start: bool = False,
    log_file: Path | None = None,
    conf: Mapping[str, str] | None = None,
    is_typical: Callable[[], bool] | None = None,
    preload: Sequence[str] = (),
) -> Iterator[SparkSession]:
    """Start a session, and stop it with everything that it made when the block ends.

    Args:
        app: Name of the application.
        master: Spark master URL.
        shuffle_partitions: Number of state partitions; default: the cores.
        driver_memory: Heap of the driver.
        quick_start: Let the JVM compile less: for runs of a minute or two.
        log_file: Where Spark's own log goes.
        conf: Settings that override everything else.
        is_typical: Asked at the end: whether this run has used what later ones will, so that the next
            start takes the classes of this one from an archive.
        preload: Modules that Spark's Python processes will need: with a local master they are loaded once
            for all of them.

    Raises:
        SessionError: A session runs in this process already, or Java does not start.

    Example:
        >>> with spark_session("try", master="local[1]") as spark:  # doctest: +SKIP
        ...     spark.range(3).count()
        3
    """
    from millrace.runtime.doctor import quick_check

    if SparkSession.getActiveSession() is not None:
        raise SessionError("a Spark session runs in this process already: stop it first")
    quick_check()
    own_python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable) == sys.executable
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local_cores(master) is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if log_file is not None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
    # Sockets have short paths by law (about 100 characters), so the folder is under the system's own.
    with scratch_folder(SCRATCH_PREFIX) as scratch, ExitStack() as kept:
        for folder in ("spark", "sockets", "python"):
            (scratch / folder).mkdir(mode=0o700)
        python = None
        if own_python and local_cores(master) is not None:
            python = kept.enter_context(launcher(scratch / "python", preload))
        settings = session_conf(
            master=master,
            shuffle_partitions=shuffle_partitions,
            driver_memory=driver_memory,
            quick_start=quick_start,
            log_file=log_file,
            scratch=scratch,
            conf=conf,
            writes_archive=is_typical is not None,
        )
        spark = None
        try:
            spark = _start(app, settings, log_file, python, scratch)
            yield spark
        finally:
            if spark is not None:
                spark.stop()
            typical = is_typical is not None and is_typical()
            code = _end_gateway(in_time=typical)
            if typical:
                keep_archive(scratch, code, name=_ARCHIVE)


def local_session() -> SparkSession:
    """Return the session of this process; where none runs, a small one is started, which ends with it.

    For scripts and notebooks: two cores, the locked jars, quick to start.

    Raises:
        SessionError: Java does not start.

    Example:
        >>> local_session().range(3).count()  # doctest: +SKIP
        3
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    ensure_jars(("spark",))
    kept = ExitStack()
    session = kept.enter_context(spark_session("local", master="local[2]", quick_start=True))
    atexit.register(kept.close)
    return session


def _start(
    app: str, settings: Mapping[str, str], log_file: Path | None, python: Path | None, scratch: Path
) -> SparkSession:
    """Start the JVM with its output in the log: Spark and its workers print as they please."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    spark_conf = SparkConf(loadDefaults=False).setAppName(app).setAll(list(settings.items()))
    with open(log_file or os.devnull, "ab") as output, submit_arguments(dict(spark_conf.getAll()), scratch):
        try:
            # Without settings: PySpark would make arguments of them, for everybody to see.
            gateway = launch_gateway(None, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            raise SessionError(
                f"Java did not start ({error}); see {log_file} and run: millrace doctor"
            ) from error
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        context = SparkContext(conf=spark_conf, gateway=gateway)
    except Py4JJavaError as error:
        # Its words are Java's, which is about to end.
        said = str(error.java_exception.toString()).partition("\n")[0]
        raise SessionError(f"Spark did not start ({said}); see {log_file}") from None
    if python is not None:
        context.pythonExec = str(python)
    if threading.current_thread() is threading.main_thread():
        # Spark has put a handler in place of the caller's, which may want to stop gracefully.
        signal.signal(signal.SIGINT, on_interrupt)
    return SparkSession.builder.config(conf=context.getConf()).getOrCreate()


def _archive_flags(write_below: Path | None) -> list[str]:
    """Return the JVM flags that use the archive of Spark's classes, or have it written."""
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    # A Java that does not work is told of by whoever starts it.
    with suppress(JavaError, OSError):
        return archive_flags(check_java(), jars, write_below=write_below, name=_ARCHIVE)
    return []


def _end_gateway(*, in_time: bool) -> int:
    """End the JVM, and return its exit code: PySpark keeps it, with the settings of the first session.

    Args:
        in_time: Whether it may take its time: the first one of an environment writes an archive of its
            classes, which nobody needs of a run that did nothing.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return -1
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    code = -1
    if process is not None:
        process.stdin.close()
        try:
            code = process.wait(timeout=_LAST_S if in_time else _LAST_S / 4)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
    return code
