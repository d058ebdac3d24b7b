"""The live pages' websockets: a snapshot, then what happens, for one run or for all of them.

Frames are JSON texts. A run's socket first sends `{"type": "snapshot", "seq", "now", "run", "nodes"}`, or,
asked with `?after=SEQ`, the entries since; then every entry of its history, in order and without gaps, as the
contract's section 6 shows them. The socket of all runs sends `{"type": "snapshot", "now", "runs"}`, then entries
of all runs, shortened to what a list shows, as fast as a page can use them, and `{"type": "resync"}` when it left
some out. Everything is masked as `WORKFLOW["REDACT"]` says.

Close codes: 4401 nobody is logged in (any more), 4403 no permission, or a page of another site asks,
4404 no such run (any more), 4408 the client does not keep up.
"""

from workflow.consumers.run import RunConsumer
from workflow.consumers.runs import RunsConsumer

__all__ = ["RunConsumer", "RunsConsumer"]
