"""What a network has to know of the data before it is built."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataInfo:
    """The facts of a data set that shape a network; known without reading the data.

    Attributes:
        kind: the task that the data poses: `image_classification`, `sequence_classification` or `extractive_qa`.
        num_classes: outputs of the head; 1 means regression, 2 for `extractive_qa` (start and end).
        image_size: side of the square images in pixels; None for text.
        channels: color channels of the images; None for text.
        sequence_length: the most tokens that one input may have; None for images.
    """

    kind: str
    num_classes: int
    image_size: int | None = None
    channels: int | None = None
    sequence_length: int | None = None
