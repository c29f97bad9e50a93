"""The schemas that a key group's pages are written in: that of now, and those of earlier declarations."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.state.backend import GroupBackend
from millrace.state.cells import SCHEMA_PAGE, PageInfo, StateCorrupted, encode, read_schemas
from millrace.state.earlier_entries import OlderLayout
from millrace.state.layout import EntryLayout


class Schemas:
    """What the pages of a group are written in; a page names its schema by place.

    Args:
        layout: How entries are packed now.
        digests: Digests of the schemas in the group's header, none for a new group.
        backend: Where the schemas are, read only if there are others than that of now.

    Raises:
        StateCorrupted: The schemas cannot be read.
        StateSchemaMismatch: A page may be in a schema that ``layout`` cannot read.
    """

    def __init__(self, layout: EntryLayout, digests: list[int], backend: GroupBackend) -> None:
        self._layout = layout
        self._stored = list(digests)
        self._digests = list(digests)
        self._texts = [layout.schema]
        #: Place of the schema of now.
        self.now = 0
        if not digests:
            self._digests = [layout.schema_digest]
        elif digests != [layout.schema_digest]:
            self._read(backend)

    def _read(self, backend: GroupBackend) -> None:
        self._texts = read_schemas(backend.get_page(SCHEMA_PAGE))
        if len(self._texts) != len(self._digests):
            raise StateCorrupted("a key group's header and its schemas do not belong together")
        if self._layout.schema not in self._texts:
            self._texts.append(self._layout.schema)
            self._digests.append(self._layout.schema_digest)
        self.now = self._texts.index(self._layout.schema)
        for place in range(len(self._texts)):
            if place != self.now:
                self.reader(place)  # refuses what it cannot read, before anything is read

    @property
    def several(self) -> bool:
        """Whether a page may be in an older schema."""
        return len(self._texts) > 1

    @property
    def changed(self) -> bool:
        """Whether the schemas are others than those that are stored."""
        return self._digests != self._stored

    def reader(self, place: int) -> OlderLayout:
        """Return the reader of the older schema at ``place``."""
        known, text = self._layout.older, self._texts[place]
        if text not in known:
            known[text] = OlderLayout(self._layout, text)
        return known[text]  # type: ignore[no-any-return]

    def used_by(self, pages: Iterable[PageInfo]) -> list[int]:
        """Forget the schemas that no page is in any more; return the digests of the others."""
        if not self.several:
            return self._digests  # of a long list not all pages are known, and none has to be
        pages = list(pages)
        used = sorted({self.now, *(p.schema for p in pages)})
        if used != list(range(len(self._texts))):
            for info in pages:
                info.schema = used.index(info.schema)
            self._texts = [self._texts[i] for i in used]
            self._digests = [self._digests[i] for i in used]
            self.now = used.index(self.now)
        return self._digests

    def written(self) -> bytes:
        """Return the schemas to be stored; from then on they are what is stored."""
        self._stored = list(self._digests)
        return encode(self._texts)

    def forget(self) -> None:
        """Take note that nothing is stored any more."""
        self._stored = []
