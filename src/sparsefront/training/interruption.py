"""What ends a training from outside leaves it as what it was: Lightning makes an exit without a reason of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from pytorch_lightning.utilities.exceptions import SIGTERMException

from sparsefront.errors import Terminated


@contextmanager
def told_as_it_was() -> Iterator[None]:
    """Around `Trainer.fit`, which exits with status 1 at Ctrl-C, and at SIGTERM with 0, as if all were done.

    Raises:
        KeyboardInterrupt: Ctrl-C in the block.
        Terminated: SIGTERM in the block.
    """
    try:
        yield
    except SIGTERMException:
        raise Terminated from None
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
