"""Animate a prediction, one frame a step, as GIF by pillow or as MP4 by ffmpeg.

`prediction` draws the frames.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from giaann_dask.diagnostics.pictures.draw_options import DrawOptions, check_suffix, write_picture
from giaann_dask.diagnostics.pictures.drawing import wrapped
from giaann_dask.diagnostics.pictures.prediction import Prediction, draw_state, graph_of
from giaann_dask.diagnostics.pictures.schemes import ACTIVATION, Theme, blend, theme_of
from giaann_dask.errors import MissingDependencyError, require_option
from giaann_dask.local_files import local_path
from giaann_dask.storage import replacing, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ANIMATION_SUFFIXES = (".gif", ".mp4")
_DOTS_PER_INCH = 80
# Of the 256 colours of a GIF: steps of the scale of activation, and of each other colour towards the page's.
_SCALE_STEPS, _STEPS = 100, 16
# How many times as long the last frame stands.
_LAST = 3


def check_animation(path: str | Path) -> Path:
    """Return the path of an animation that can be written here.

    Raises
    ------
    OptionError
        If the name ends neither in ``.gif`` nor in ``.mp4``.
    MissingDependencyError
        If it is an MP4, and there is no ffmpeg.
    """
    path = local_path(path)
    check_suffix(path, ANIMATION_SUFFIXES)
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise MissingDependencyError(
            f"{path} needs the program ffmpeg, which is not here", "ffmpeg on the PATH", "install it, or name a .gif"
        )
    return path


def draw_frames(prediction: Prediction, options: DrawOptions | None = None) -> Iterator[Figure]:
    """Yield a picture of the state after every step, all of the same size and on the same columns.

    Parameters
    ----------
    prediction : Prediction
        From `giaann_dask.diagnostics.pictures.prediction.predict`.
    options : DrawOptions, optional
        How much is drawn, and how large.
    """
    options = options or DrawOptions(colour="activation")
    steps = range(len(prediction.steps))
    graph = graph_of(prediction, steps, options)
    # One scale for all frames, so that a colour means the same in each.
    values = (step.activation(graph).values() for step in prediction.steps)
    largest = max((max(found, default=0.0) for found in values), default=0.0)
    lines = max(len(wrapped(prediction.told(at), options.width_inches)) for at in steps)
    for at in steps:
        yield draw_state(prediction, at, graph, options, largest=largest, caption_lines=lines)


def save_animation(
    prediction: Prediction, path: str | Path, options: DrawOptions | None = None, seconds: float = 1.2
) -> Path:
    """Write a prediction as an animation.

    Parameters
    ----------
    prediction : Prediction
        From `giaann_dask.diagnostics.pictures.prediction.predict`.
    path : str or Path
        A file that ends in ``.gif`` or, where ffmpeg is installed, ``.mp4``.
    options : DrawOptions, optional
        How much is drawn, and how large.
    seconds : float
        Duration of a step of the animation, 0.05 to 60.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OptionError
        If the name ends otherwise, or `seconds` is out of range.
    MissingDependencyError
        If it is an MP4, and there is no ffmpeg.
    StoreWriteError
        If the disk is full.
    """
    path = check_animation(path)
    require_option(0.05 <= seconds <= 60, "seconds", seconds, "0.05 to 60")
    options = options or DrawOptions(colour="activation")
    frames = draw_frames(prediction, options)
    if path.suffix.lower() == ".mp4":
        return _save_film(frames, path, seconds)
    return write_picture(path, _as_gif(frames, seconds, theme_of(options.dark)))


def _as_gif(frames: Iterator[Figure], seconds: float, theme: Theme) -> bytes:
    """Return frames as the bytes of a looping GIF."""
    from PIL import Image

    # Chosen for each frame by itself, colours would flicker and those of few dots be lost.
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in _gif_colours(theme) for channel in bytes.fromhex(colour[1:])])
    pictures = []
    for figure in frames:
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=_DOTS_PER_INCH)
        pictures.append(Image.open(content).convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE))
    first, *rest = pictures
    duration = [round(1000 * seconds)] * len(rest) + [round(1000 * seconds * _LAST)]
    content = io.BytesIO()
    first.save(content, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
    return content.getvalue()


def _gif_colours(theme: Theme) -> list[str]:
    """Return the colours of all frames: those of the scale, and the others with their smooth edges."""
    colours = [blend(ACTIVATION, step / (_SCALE_STEPS - 1)) for step in range(_SCALE_STEPS)]
    others = (theme.text, theme.faint, theme.frame, theme.mark, theme.box, theme.node, theme.external)
    # Words on dark neurons are white.
    steps = [step / (_STEPS - 1) for step in range(_STEPS)]
    colours += [blend((theme.page, colour), step) for colour in others for step in steps]
    return list(dict.fromkeys([*colours, *(blend((ACTIVATION[-1], "#ffffff"), step) for step in steps)]))


def _save_film(frames: Iterator[Figure], path: Path, seconds: float) -> Path:
    """Write frames as an MP4 that players of all kinds show; the file appears when it is complete."""
    from matplotlib.animation import FFMpegWriter

    # Most players know this form of colours only, and it needs even numbers of dots.
    form = ["-pix_fmt", "yuv420p", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-f", "mp4"]
    writer = FFMpegWriter(fps=1 / seconds, codec="h264", extra_args=form)  # type: ignore[arg-type]
    with writing(f"the picture {path}"), replacing(path) as partial:
        figure = next(frames)
        writer.setup(figure, str(partial), dpi=_DOTS_PER_INCH)
        while True:
            writer.fig = figure
            writer.grab_frame(facecolor=figure.get_facecolor())
            following = next(frames, None)
            if following is None:
                break
            figure = following
        for _ in range(_LAST - 1):
            writer.grab_frame(facecolor=figure.get_facecolor())
        writer.finish()
    return path
