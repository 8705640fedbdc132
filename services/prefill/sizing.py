"""Decides the size of this instance's KV cache."""

from pathlib import Path

from lookout.models.engines.sizing import kv_budget
from lookout.services.prefill.settings import PrefillSettings


def kv_bytes(settings: PrefillSettings, folder: Path) -> int:
    """Return how many bytes of KV to keep between windows: the setting, or what the device's memory leaves
    (`lookout.models.engines.sizing`).

    Raises:
        UnsupportedModelError: The model does not fit on the device, or window plans do not support it.
        ModelError: A weight file is damaged.
    """
    return kv_budget(
        folder,
        settings.place,
        settings.dtype,
        kv_bytes=settings.kv_bytes,
        pass_rows=settings.batch_rows,
        window_rows=settings.window_rows,
        table_bytes=None if settings.engine == "vllm" else 0,
    )
