"""Which worker of `make test` runs which file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_USES_SESSION = re.compile(r'\bspark: SparkSession\b|getfixturevalue\("spark"\)')


class SharedSessions(LoadFileScheduling):
    """Half of the workers run the files that use the fixture ``spark``: a session takes 20 s of a processor to warm up.

    The others start a session only if nothing else is left.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        has_session = int(node.gateway.id.removeprefix("gw")) < max(1, self.numnodes // 2)
        for file in self.workqueue:
            if uses_session(self.config.rootpath / file) == has_session:
                self.workqueue.move_to_end(file, last=False)
                break
        super()._assign_work_unit(node)


@cache
def uses_session(file: Path) -> bool:
    return _USES_SESSION.search(file.read_text()) is not None
