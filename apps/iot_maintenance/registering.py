"""The part of the monitor that knows what the asset registry says: places, measuring points, devices."""

from __future__ import annotations

from collections.abc import Sequence

from apps.iot_maintenance.assets import Asset, Standing, quantity_of
from apps.iot_maintenance.events import Equipment
from apps.iot_maintenance.liveness import Gateway
from apps.iot_maintenance.production import Producing
from apps.iot_maintenance.state import REGISTERED, UNKNOWN, WITH_POINTS, Machine
from apps.iot_maintenance.watch import LIVE
from millrace import Context
from millrace.time import NEVER


class Registering(Producing):
    """Takes what the registry says, and listens for what it names and nobody has heard."""

    def _register(self, event: Equipment, machine: Machine, at: int, ctx: Context) -> None:
        """Take at ``at`` (ms) what the registry says: place, measuring points, devices to be heard."""
        asset = self.asset.value
        if asset is None:
            asset = self.asset.value = Asset()
        elif event.event_time_ms < asset.at:
            return
        before, was_unknown = self._place(ctx), machine.registered == UNKNOWN
        told = [name for name, point in asset.points.items() if point.silent]
        over = asset.register(event)
        machine.registered = WITH_POINTS if event.points else REGISTERED
        conditions = self.conditions.value
        if conditions is not None and conditions.conditions and self._place(ctx) != before:
            self._engine(ctx, at=at).moved(before)
        if self._m.foresees and self._place(ctx) != before:
            ctx.output(self.places, Standing(ctx.key, at, *self._place(ctx)))
        if was_unknown:
            self._notice("unknown_asset", "", "over", ctx)
        for name in over:
            self._notice("unknown_point", name, "over", ctx)
        if event.points:
            self._expect_points(asset, machine, told, at, ctx)
        if event.devices:
            self._expect_devices(event.devices, at, ctx)
        self._wake(ctx)

    def _expect_points(self, asset: Asset, machine: Machine, told: list[str], at: int, ctx: Context) -> None:
        """Listen for measuring points that have never been heard, and no more for those that are gone."""
        for subject, sensor in list(machine.sensors.items()):
            quantity = quantity_of(subject)
            found = asset.subject(sensor.name, quantity) if sensor.name else None
            if found is not None and found != subject and found not in machine.sensors:
                # It was known by its sensor alone: from now on by its measuring point.
                machine.sensors[found], machine.running[found] = sensor, machine.running.pop(subject)
                sensor.name = ""
                del machine.sensors[subject]
                told += [subject] * (machine.silences.pop(subject, None) is not None)
                self._engine(ctx, at=at).gone(subject)
            elif subject in machine.silences and subject not in asset.points:
                del machine.sensors[subject], machine.running[subject], machine.silences[subject]
                told.append(subject)
        for subject in told:
            if subject not in asset.points:
                self._engine(ctx, at=at).silent(subject, silent=False)
        soonest = NEVER
        for subject, point in asset.points.items():
            if subject in machine.sensors:
                point.judge, point.silent = 0, False
            elif not point.silent:
                wait = max(self._m.first_heard_ms, int(self._m.sensor_intervals * point.interval_ms))
                point.judge = point.judge or at + wait
                soonest = min(soonest, point.judge)
        self._watch_from(machine, soonest, ctx)

    def _expect_devices(self, names: Sequence[str], at: int, ctx: Context) -> None:
        """Listen for devices that have never been heard."""
        gateway = self.gateway.value
        if gateway is None:
            gateway = self.gateway.value = Gateway()
        for name in gateway.expect(names, ctx.key, at, self._m.first_heard_ms):
            self._engine(ctx, at=at).silent(name, silent=False)
        due = gateway.next_ms()
        pending = ctx.timers.pending(LIVE, clock="stream")
        if due != NEVER and (pending is None or pending > due):
            ctx.timers.at(due, LIVE, clock="stream")
