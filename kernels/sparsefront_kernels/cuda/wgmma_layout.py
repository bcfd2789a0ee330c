"""Shared memory layouts of wgmma operands on compute capability 9.0."""

import torch
from torch import Tensor

from sparsefront_kernels.indices import GROUP, places_of_kept

CHUNK = 8  # 16-bit elements that stay together
LINE = 64  # 16-bit elements in 128 bytes: all banks of shared memory


def swizzled(panels: Tensor) -> Tensor:
    """Swizzle rows of 16-bit elements with the row's size; its own inverse.

    Rows of 64 elements: chunk c of eight goes to c ^ (row % 8). Rows of 32, two per line of 128 bytes: c ^ (row // 2 % 4).

    Args:
        panels: [..., rows, 64 or 32], rows a multiple of 8.
    """
    columns = panels.shape[-1]
    row, chunk = torch.arange(8, device=panels.device)[:, None], torch.arange(columns // CHUNK, device=panels.device)
    eights = panels.reshape(-1, 8, columns // CHUNK, CHUNK)  # [eights of rows, row % 8, chunk, 8]
    return eights[:, row, chunk ^ (row // (LINE // columns))].view(panels.shape)


OUTPUTS = INPUTS = 64  # per panel
KEPT = INPUTS // 2
VALUES, PLACES = OUTPUTS * KEPT, 256  # 16-bit elements; 256 are 128 words of indices
HALVED_PANEL_BYTES = 2 * (VALUES + PLACES)


def is_halved(panels: Tensor) -> bool:
    """Whether panels are from `halved_panels`: whole ones are matrices."""
    return panels.ndim == 2


def halved_panels(panels: Tensor) -> Tensor:
    """Compress panels to two of every four inputs.

    Args:
        panels: [panels, 64 outputs, 64 inputs], 16-bit, not swizzled; at most two of every four inputs are nonzero.
    Returns:
        [panels, 2304]: 32 values per output, in swizzled rows of 64 bytes; then the indices of the values, a 32-bit word for
        each of 128 lanes.
    Raises:
        ValueError: more than two of four inputs are nonzero.
        panels: [panels, 64 outputs, 64 inputs], a type of 16 bits, not swizzled; at most two of every four inputs are not 0.
    Returns:
        [panels, 2304]: 32 values of each output, rows of 64 bytes swizzled by as many; then the places of the values, a
        word of 32 bits for each of 128 lanes.
    Raises:
        ValueError: more than two of four inputs are not 0.
    """
    groups = panels.reshape(-1, INPUTS // GROUP, GROUP)  # [panels * 64, 16, 4]
    places = places_of_kept(groups != 0, 2, family="panel")
    values = groups.gather(2, places).view(-1, OUTPUTS, KEPT)
    words = _words(places.view(-1, OUTPUTS, INPUTS // GROUP, 2))
    return torch.cat([swizzled(values).flatten(1), words.view(panels.dtype)], dim=1)


def whole_panels(panels: Tensor) -> Tensor:
    """Unswizzled [panels, 64, 64], from swizzled panels or those of `halved_panels`."""
    if not is_halved(panels):
        return swizzled(panels)
    values = swizzled(panels[:, :VALUES].reshape(-1, OUTPUTS, KEPT)).view(-1, OUTPUTS, INPUTS // GROUP, 2)
    places = _places(panels[:, VALUES:].contiguous().view(torch.int32))
    groups = panels.new_zeros(len(panels), OUTPUTS, INPUTS // GROUP, GROUP)
    return groups.scatter(3, places, values).flatten(2)


# Output 16 w + 8 u + q and group 8 c + 4 s + j of four inputs: bits 16 u + 4 j on of the word of lane 32 w + 4 q + 2 c + s.
_WORD_OF = (-1, 4, 2, 8, 2, 2, 4)  # panels, w, u, q, c, s, j


def _words(places: Tensor) -> Tensor:
    """Indices [panels, 64, 16, 2] → int32 [panels, 128]."""
    nibbles = (places[..., 0] | places[..., 1] << 2).view(_WORD_OF)
    shifts = 16 * torch.arange(2, device=places.device)[:, None] + 4 * torch.arange(4, device=places.device)  # [u, j]
    words = (nibbles << shifts.view(2, 1, 1, 1, 4)).sum(dim=(2, 6)).flatten(1)
    return torch.where(words < 2**31, words, words - 2**32).to(torch.int32)


def _places(words: Tensor) -> Tensor:
    """Inverse of `_words`: int64 [panels, 64, 16, 2]."""
    of_lane = words.long().view(-1, 4, 1, 8, 2, 2, 1)
    shifts = 16 * torch.arange(2, device=words.device)[:, None] + 4 * torch.arange(4, device=words.device)
    nibbles = (of_lane >> shifts.view(2, 1, 1, 1, 4) & 15).view(-1, OUTPUTS, INPUTS // GROUP)
    return torch.stack([nibbles & 3, nibbles >> 2], dim=3)
