"""Draw networks: columns and neurons, whole networks as a density, predictions step by step.

`Pictures` has one method for each kind of picture. Pictures of evaluations are in
`giaann_dask.diagnostics.evaluation_report`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
from giaann_dask.errors import OptionError
from giaann_dask.keywords import names_keywords

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

    from giaann_dask.diagnostics.pictures.draw_options import DensityOptions
    from giaann_dask.diagnostics.pictures.prediction import Prediction
    from giaann_dask.models.generation_options import GenerationOptions
    from giaann_dask.store.commits import CommitReader


@names_keywords
class Pictures:
    """Pictures of a commit of a network of profile ``v1`` or ``v2``.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    """

    def __init__(self, reader: CommitReader) -> None:
        self._reader = reader

    def draw(self, options: DrawOptions | None = None) -> Figure:
        """Return a picture of some concept columns; see `giaann_dask.diagnostics.pictures.drawing.draw_commit`."""
        from giaann_dask.diagnostics.pictures.drawing import draw_commit

        return draw_commit(self._reader, options)

    def save_page(self, path: str | Path, options: DrawOptions | None = None) -> Path:
        """Write an interactive page; see `giaann_dask.diagnostics.pictures.interactive.save_page`."""
        from giaann_dask.diagnostics.pictures.interactive import save_page

        return save_page(self._reader, path, options)

    def draw_density(self, options: DensityOptions | None = None) -> Figure:
        """Return a picture of all connections; see `giaann_dask.diagnostics.pictures.density`."""
        from giaann_dask.diagnostics.pictures.density import count_density, draw_density

        return draw_density(count_density(self._reader, options), options)

    def predict(
        self, prompt: str, options: GenerationOptions | None = None, client: Client | None = None
    ) -> Prediction:
        """Return a prediction step by step; see `giaann_dask.diagnostics.pictures.prediction.predict`."""
        from giaann_dask.diagnostics.pictures.prediction import predict

        return predict(self._reader, prompt, options, client)

    def draw_step(self, prompt: str | Prediction, step: int = 1, options: DrawOptions | None = None) -> Figure:
        """Return a picture of the activation after a step beyond a prompt, or of a prediction that was made of it."""
        from giaann_dask.diagnostics.pictures.prediction import draw_step

        return draw_step(self._predicted(prompt, options), step, options)

    def animate(
        self, prompt: str | Prediction, path: str | Path, options: DrawOptions | None = None, seconds: float = 1.2
    ) -> Path:
        """Write a prediction as an animation; see `giaann_dask.diagnostics.pictures.animation.save_animation`."""
        from giaann_dask.diagnostics.pictures.animation import check_animation, save_animation

        check_animation(path)
        return save_animation(self._predicted(prompt, options), path, options, seconds)

    def _predicted(self, prompt: str | Prediction, options: DrawOptions | None) -> Prediction:
        if options is not None and options.colour not in ("default", "activation"):
            raise OptionError(
                f"colour {options.colour} of a prediction", "activation", "leave it out", names=("colour",)
            )
        return self.predict(prompt) if isinstance(prompt, str) else prompt
