from io import BytesIO

import pytest
from PIL import Image

from qkv.draw import encode_png


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_pillow_reads_the_same_pixels(channels, mode):
    pixels = bytes(range(7 * 5 * channels))
    with Image.open(BytesIO(encode_png(pixels, 7, 5, channels))) as image:
        assert (image.mode, image.size) == (mode, (7, 5))
        assert image.tobytes() == pixels


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((2, 1, 2), "channels must be 1 or 3, got 2"),
        ((2, 2, 1), "2 x 2 x 1 pixels need 4 bytes, got 2"),
        ((0, 0, 1), "0 x 0 x 1 pixels need 0 bytes, got 2"),
    ],
)
def test_bad_input_sizes(size, message):
    with pytest.raises(ValueError, match=message):
        encode_png(b"ab", *size)
