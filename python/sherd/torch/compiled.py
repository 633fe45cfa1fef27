"""Makes code of torch.compile mind the hooks of modules, by which an engine acquires and releases units."""
from __future__ import annotations

import sys


def mind_hooks() -> None:
    """Makes torch.compile check whether modules have hooks, and forget the code that it has compiled without that check. Local.

    By default torch.compile does not look whether a module without hooks has got some since, or whether another module of its class
    has some, and takes the code that it has: the hooks would not run. The setting is the process's, and costs one more check of each
    module's code. torch._dynamo takes seconds to import, and has compiled nothing where it is not imported. A second call changes
    nothing.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.config.skip_nnmodule_hook_guards:
        dynamo.config.skip_nnmodule_hook_guards = False
        dynamo.reset()
