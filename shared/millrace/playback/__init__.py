"""Playback: a topology over events at hand, in memory or on Spark, batch by batch.

For scripts, notebooks and first steps: the input is a list, each item of it is a batch, and what came out is
there when :func:`play` returns. Both engines give the same. A job reads Kafka or files instead
(:func:`millrace.keyed`); a test that wants to move time and look into state by hand has
:class:`millrace.testing.TestDriver`.
"""

from millrace.host.system import Tick
from millrace.playback.files import write_batches
from millrace.playback.run import Playback, play
from millrace.playback.steps import Control, PlaybackError, Restart
from millrace.playback.text import at

__all__ = ["Control", "Playback", "PlaybackError", "Restart", "Tick", "at", "play", "write_batches"]
