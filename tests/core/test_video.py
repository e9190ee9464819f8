import io

import av
import numpy as np
import pytest

from embodied.core.video import encode_video, to_rgb, write_video


def moving_square(length=12, height=32, width=48):
    frames = np.zeros((length, height, width, 3), np.uint8)
    for t in range(length):
        frames[t, 8:24, 2 * t : 2 * t + 16] = (255, 64, 0)
    return frames


def decode(source):
    with av.open(source) as container:
        rate = container.streams.video[0].average_rate
        frames = [x.to_ndarray(format="rgb24") for x in container.decode(video=0)]
    return np.stack(frames), rate


@pytest.mark.parametrize(("fmt", "error"), [("mp4", 8), ("gif", 4)])
def test_frames_come_back(fmt, error):
    video = moving_square()
    frames, rate = decode(io.BytesIO(encode_video(video, 20, fmt)))
    assert frames.shape == video.shape
    assert rate == 20
    assert np.abs(frames.astype(int) - video).mean() < error


@pytest.mark.parametrize(("height", "width"), [(63, 64), (33, 17), (1, 1), (8, 8)])
@pytest.mark.parametrize("fmt", ["mp4", "gif"])
def test_odd_and_small_sizes(fmt, height, width):
    video = np.full((3, height, width, 3), 200, np.uint8)
    frames, _ = decode(io.BytesIO(encode_video(video, 10, fmt)))
    even = fmt == "mp4"
    assert frames.shape == (3, height + even * (height % 2), width + even * (width % 2), 3)
    assert np.abs(frames.astype(int) - 200).max() < 8


def test_writes_any_iterable_to_a_file(tmp_path):
    path = tmp_path / "video.gif"
    write_video(path, iter(moving_square()), 15)
    assert path.read_bytes().startswith(b"GIF89a")
    assert len(decode(str(path))[0]) == 12


def test_a_browser_gets_a_playable_mp4():
    data = encode_video(moving_square(), 15)
    with av.open(io.BytesIO(data)) as container:
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"


@pytest.mark.parametrize(("channels", "kept"), [(1, 0), (2, 0), (3, 2), (4, 2), (6, 2)])
def test_any_number_of_channels(channels, kept):
    image = np.broadcast_to(np.arange(channels, dtype=np.uint8), (4, 5, channels))
    assert to_rgb(image).shape == (4, 5, 3)
    assert to_rgb(image)[0, 0, 2] == kept


def test_other_types_are_scaled():
    image = np.array([[[0.0, 0.5, 1.0], [2.0, -1.0, np.nan]]])
    np.testing.assert_array_equal(to_rgb(image), [[[0, 127, 255], [255, 0, 0]]])
    assert to_rgb(np.ones((2, 2, 1), bool)).max() == 255
    assert to_rgb(np.full((2, 2, 3), 300, np.int32)).max() == 255


def test_errors_say_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="at least one frame"):
        encode_video([], 10)
    with pytest.raises(ValueError, match="mp4 or gif, not as 'avi'"):
        write_video(tmp_path / "x.avi", moving_square(), 10)
    with pytest.raises(ValueError, match=r"\(4, 4, 3\) is followed by \(6, 4, 3\)"):
        encode_video([np.zeros((4, 4, 3)), np.zeros((6, 4, 3))], 10)
