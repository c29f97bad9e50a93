"""Operators: what streams are asked again and again, each a function that returns a process.

Like a window, an operator is defined in one expression and any host runs it: drop repeats, rank, notice
what did not come, aggregate as events come, smooth, forecast, notice change, score what is unusual.
"""

from millrace.operators.absence import absence, heartbeat
from millrace.operators.anomaly import novelty
from millrace.operators.base import OperatorDefinitionError, OperatorProcess
from millrace.operators.charts import control_chart
from millrace.operators.control import fit_chart
from millrace.operators.crossing import limit_forecast
from millrace.operators.dedup import deduplicate
from millrace.operators.detectors import Detector, adwin, cusum, page_hinkley
from millrace.operators.drift import drift
from millrace.operators.forecast import fit_holt_winters, holt_winters
from millrace.operators.ranking import top_n
from millrace.operators.running import moving, running
from millrace.operators.scores import anomaly_scores
from millrace.operators.smoothing import ewm

__all__ = [
    "Detector",
    "OperatorDefinitionError",
    "OperatorProcess",
    "absence",
    "adwin",
    "anomaly_scores",
    "control_chart",
    "cusum",
    "deduplicate",
    "drift",
    "ewm",
    "fit_chart",
    "fit_holt_winters",
    "heartbeat",
    "holt_winters",
    "limit_forecast",
    "moving",
    "novelty",
    "page_hinkley",
    "running",
    "top_n",
]
