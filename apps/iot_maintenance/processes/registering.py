"""The part of the monitor that knows what the asset registry says: places, measuring points, devices."""

from __future__ import annotations

from collections.abc import Sequence

from millrace import Context
from millrace.time import NEVER
from millrace_apps.iot_maintenance.contracts.events import Equipment
from millrace_apps.iot_maintenance.processes.doubts import Doubts
from millrace_apps.iot_maintenance.processes.liveness import Gateway
from millrace_apps.iot_maintenance.processes.liveness_monitor import LIVE
from millrace_apps.iot_maintenance.processes.production import Producing
from millrace_apps.iot_maintenance.state.assets import Asset, Standing, What, quantity_of, subject_of
from millrace_apps.iot_maintenance.state.machine import REGISTERED, UNKNOWN, WITH_POINTS, Machine


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
        if event.points:
            self._expect_points(asset, machine, told, at, ctx)
        self._settle(event, asset, machine, over, at, was_unknown=was_unknown, ctx=ctx)
        if event.devices:
            self._expect_devices(event.devices, at, ctx)
        self._wake(ctx)

    def _settle(
        self,
        event: Equipment,
        asset: Asset,
        machine: Machine,
        over: Sequence[str],
        at: int,
        *,
        was_unknown: bool,
        ctx: Context,
    ) -> None:
        """Doubt no more what the registry has now; of what was told say that it is over."""
        doubts = self.doubts.value or Doubts()
        # What was told before there were doubts.
        if was_unknown and not any(what == "unknown_asset" for what, _, _ in doubts.all()):
            self._notice("unknown_asset", "", "over", at, ctx)
        for name in over:
            self._notice("unknown_point", name, "over", at, ctx)
        for what, name, since in list(doubts.all()):
            if self._is_known(what, name, since, event, asset, machine):
                of = doubts.drop(what, name)
            elif (what == "unknown_point" and not event.points) or (
                what == "unknown_device" and not event.devices
            ):
                of = doubts.untell(what, name)
            else:
                continue
            if of is not None:
                self._notice(what, name, "over", max(of + 1, event.event_time_ms), ctx)
        if self.doubts.value is not None and not doubts.since:
            self.doubts.clear()
        self._weigh(at - 1, ctx)

    def _is_known(
        self, what: What, name: str, since: int, event: Equipment, asset: Asset, machine: Machine
    ) -> bool:
        """Return whether something that was met at ``since`` (ms) is known to the registry now."""
        if what == "unknown_point":
            return name in asset.points or name not in machine.sensors
        if what == "unknown_device":
            return name in event.devices
        return what == "unknown_asset" or self._regimes(machine, since)(name) is not None

    def _expect_points(self, asset: Asset, machine: Machine, told: list[str], at: int, ctx: Context) -> None:
        """Listen for measuring points that have never been heard, and no more for those that are gone."""
        for subject, sensor in list(machine.sensors.items()):
            quantity = quantity_of(subject)
            found = asset.subject(sensor.name, quantity) if sensor.name else None
            if found is not None and found != subject and found not in machine.sensors:
                # It was known by its sensor alone: from now on by its measuring point.
                sensor.name = ""
                told += self._rename(subject, found, machine, at, ctx)
            elif subject in machine.silences and subject not in asset.points:
                del machine.sensors[subject], machine.running[subject], machine.silences[subject]
                told.append(subject)
        for subject, sensor in list(machine.sensors.items()):
            quantity = quantity_of(subject)
            bare = subject_of(quantity, "")
            if sensor.name and subject == subject_of(quantity, sensor.name) and bare not in machine.sensors:
                # It was the second of its quantity, and is the first of those that nobody has registered: so
                # it is called from now on, and would be had the registry been read before.
                if (doubts := self.doubts.value) is not None:
                    doubts.stand_for("unknown_point", subject, bare)
                told += self._rename(subject, bare, machine, at, ctx)
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

    def _rename(self, subject: str, to: str, machine: Machine, at: int, ctx: Context) -> list[str]:
        """Let a sensor go on by another name; return the old one if it was told to be silent."""
        machine.sensors[to], machine.running[to] = machine.sensors.pop(subject), machine.running.pop(subject)
        silent = machine.silences.pop(subject, None) is not None
        self._engine(ctx, at=at).gone(subject)
        return [subject] * silent

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
