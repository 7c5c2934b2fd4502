"""Settings: read what is stored of queues, and what is paused: a change counts within about a second."""

from __future__ import annotations

from holdfast import events
from holdfast.errors import ConfigError
from holdfast.jobs.pausing import Said
from holdfast.jobs.source import JobsSource
from holdfast.values.queues import PLAIN, QueueSettings
from holdfast.values.reserved import is_route
from holdfast.worker.rounds.base import Round, RoundContext


class Settings(Round):
    name = "settings"
    every_seconds = 1.0

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._sources = [source for source in context.sources if isinstance(source, JobsSource)]
        self._queues = {name for source in self._sources for name in source.queues}
        self._known: dict[str, QueueSettings] | None = None
        self._is_first_turn = True

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return any(isinstance(source, JobsSource) for source in context.sources)

    async def pause(self) -> None:
        # At once for the first time: what the code says otherwise is told when the worker starts.
        if not self._is_first_turn:
            await super().pause()
        self._is_first_turn = False

    async def run(self) -> None:
        # Pauses first: settings that cannot be read here must not keep one from being seen.
        self._learn_settings(await self.context.pauses.look(self.context.patience))
        for source in self._sources:
            for queue, kind in source.keyless():
                # An event may well be about nothing in particular, and its route has order for the others.
                if not is_route(queue):
                    settings = (self._known or {}).get(queue, PLAIN)
                    self.context.emit(events.KeyMissing(self.context.worker, queue, kind, str(settings)))

    def _learn_settings(self, said: Said) -> None:
        try:
            stored = said.stored()
        except ConfigError as error:
            # Another version has stored what this one cannot read: it goes on by what it knows.
            self.context.emit(events.UpkeepFailed(self.context.worker, self.name, str(error)))
            return
        settings = {name: one.settings for name, one in stored.items() if name in self._queues}
        if settings == self._known:
            return
        before, self._known = self._known, settings
        for source in self._sources:
            source.learn_settings(settings)
        for name in sorted(self._queues):
            self._tell(name, settings.get(name, PLAIN), None if before is None else before.get(name, PLAIN))

    def _tell(self, queue: str, stored: QueueSettings, before: QueueSettings | None) -> None:
        context = self.context
        if before is not None and stored != before:
            context.emit(events.QueueSettingsChanged(context.worker, queue, str(stored)))
        said = context.queue_options(queue).settings
        if not said.is_plain and said != stored and stored != before:
            context.emit(events.QueueSettingsDiffer(context.worker, queue, str(stored), str(said)))
