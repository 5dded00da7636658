"""Files of pictures in the explorer: the model sees what `clearhead label` sees, whatever is sent."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.data.pictures import as_text, pixels_of
from clearhead.decoding.labels import class_probabilities
from clearhead.decoding.pictures import picture_text
from clearhead.explorer.attention import attention
from clearhead.explorer.server.app import make_app
from clearhead.explorer.server.guard import MOST_BYTES, MOST_OF_A_FILE
from clearhead.explorer.server.pictures import Pictures
from clearhead.explorer.session import Session
from clearhead.models import build

from .conftest import make_bundle
from .test_server import plain

HOME = "http://127.0.0.1:8765"
SIDE = 64
GONE = "The server no longer has this picture: choose its file again."


def of_photos(size: int = SIDE, **settings: Any) -> Bundle:
    """A model of photos in colour that are scaled; `data` says how, as in a run."""
    torch.manual_seed(0)
    image = {"image__size": size, "image__patch": size // 4, "image__channels": 3}
    model = build("tiny", family="vision", head__kind="classify", head__classes=3, **image).eval()
    data = {"picture_size": size, **settings}
    return Bundle(model, None, {"task": "image", "labels": ["a", "b", "c"], "recipe": {"data": data}})


def write_photo(path: Path, size: tuple[int, int] = (2000, 1500), **options: Any) -> Path:
    """A photo without two equal corners, so that a turned or mirrored one is another."""
    columns, rows = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    noise = np.random.default_rng(0).random((size[1], size[0]))
    colours = np.stack([255 * columns, 255 * rows, 160 * noise], -1)
    Image.fromarray(colours.astype(np.uint8)).save(path, **options)
    return path


def write_turned(path: Path) -> Path:
    exif = Image.Exif()
    exif[0x112] = 6  # as a phone that was held upright stores it
    return write_photo(path, exif=exif, quality=90)


def write_transparent(path: Path) -> Path:
    dots = np.random.default_rng(1).integers(0, 256, (300, 200, 4), np.uint8)
    Image.fromarray(dots, "RGBA").save(path)
    return path


def write_animated(path: Path) -> Path:
    first, second = (Image.new("RGB", (90, 120), colour) for colour in ("red", "blue"))
    first.save(path, save_all=True, append_images=[second])
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    "turned.jpg": write_turned,
    "transparent.png": write_transparent,
    "animated.gif": write_animated,
    "photo.webp": write_photo,
    "photo.bmp": write_photo,
    "photo.tiff": write_photo,
}


def opened(*bundles: Bundle, folder: Path | None = None) -> TestClient:
    sessions = {f"model{i}": Session(bundle, f"model{i}", folder) for i, bundle in enumerate(bundles)}
    return TestClient(make_app(sessions, Path("absent")), base_url=HOME)


def send(client: TestClient, content: bytes, file: str, **params: str) -> httpx.Response:
    binary = {"content-type": "application/octet-stream"}
    return client.post("/api/picture", params={"file": file, **params}, content=content, headers=binary)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size, stretched", [(8, False), (SIDE, False), (SIDE, True)])
def test_a_file_is_read_as_label_reads_it(name: str, size: int, stretched: bool, tmp_path: Path) -> None:
    path, bundle = FILES[name](tmp_path / name), of_photos(size, picture_stretched=stretched)
    expected = picture_text(bundle, path)
    with opened(bundle) as client:
        text = send(client, path.read_bytes(), name).json()["text"]
        assert text == expected if size == 8 else len(text) == len("picture-") + 16
        png = client.get("/api/picture", params={"text": text})
        assert png.headers["content-type"] == "image/png"
        shown = np.asarray(Image.open(io.BytesIO(png.content)))
        assert np.array_equal(shown.transpose(2, 0, 1), pixels_of(expected))
        classes = client.post("/api/verdict", json={"text": text}).json()["classes"]
        [shares] = class_probabilities(bundle, [str(path)])
        assert {one["label"]: one["p"] for one in classes} == pytest.approx(shares, abs=1e-6)


def test_a_photo_of_a_phone_for_a_large_model(tmp_path: Path) -> None:
    path, bundle = write_photo(tmp_path / "12 MP.jpg", (4032, 3024), quality=95), of_photos(224)
    assert path.stat().st_size > MOST_BYTES  # more than any other request may have
    with opened(bundle) as client:
        name = send(client, path.read_bytes(), path.name).json()["text"]
        found = client.post("/api/attention", json={"text": name}).json()
        assert found == plain(attention(Session(bundle), picture_text(bundle, path)))


def png_of(width: int, height: int) -> bytes:
    """A PNG file that announces so many pixels and holds none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def test_a_bad_file_gets_the_sentence_of_label(tmp_path: Path) -> None:
    whole = write_photo(tmp_path / "whole.png", (300, 200)).read_bytes()
    tiff = write_photo(tmp_path / "whole.tiff", (300, 200)).read_bytes()
    offsets = struct.pack("<HH", 273, 4)  # where the pixels begin, as a number; 2 would be letters
    assert tiff.count(offsets) == 1
    bad = {
        "letters.tiff": (tiff.replace(offsets, struct.pack("<HH", 273, 2)), "damaged"),
        "cut off.png": (whole[: len(whole) // 2], "damaged"),
        "text.jpg": (b"no picture", "not a readable picture"),
        "empty.jpg": (b"", "not a readable picture"),
        "wide.png": (png_of(20_000, 2), "at most 16,384 are allowed"),
        "bomb.png": (png_of(16_000, 16_000), "more pixels than any camera takes"),
    }
    bundle = of_photos()
    with opened(bundle) as client:
        for name, (content, part) in bad.items():
            answer = send(client, content, name)
            path = tmp_path / name
            path.write_bytes(content)
            with pytest.raises(UserError, match=part) as refused:
                picture_text(bundle, path)
            assert answer.status_code == 400, name
            assert answer.json()["error"] == str(refused.value).replace(str(path), name)


def test_a_file_never_starts_another_program(tmp_path: Path) -> None:
    """Pillow reads EPS with Ghostscript."""
    Image.new("RGB", (9, 9)).save(tmp_path / "a.eps")
    with opened(of_photos()) as client:
        answer = send(client, (tmp_path / "a.eps").read_bytes(), "a.eps")
        assert "not a readable picture" in answer.json()["error"]


def test_a_file_may_be_larger_than_other_requests_but_not_much() -> None:
    with opened(of_photos(), make_bundle()) as client:
        large = b"x" * (MOST_OF_A_FILE + 1)
        refused = send(client, large, "large.png")
        assert refused.status_code == 413
        assert refused.json()["error"].startswith("A file may have at most 32 MB")
        assert send(client, large[1:], "large.png").status_code == 400  # it is no picture
        for path in ("/api/verdict", "/api/picture/", "/"):
            assert client.post(path, content=large[:MOST_BYTES] + b"x").status_code == 413
        assert client.request("GET", "/api/picture", content=large).status_code == 413
        stranger = {"origin": "http://evil.example"}
        assert client.post("/api/picture?file=a", content=b"x", headers=stranger).status_code == 403
        assert send(client, b"x", "a.png", model="model1").json() == {
            "error": "The model 'model1' reads texts, not pictures."
        }
        assert send(client, b"x", "a.png", model="none").status_code == 404
        assert client.get("/api/picture", params={"text": "a", "model": "model1"}).status_code == 400


def test_a_model_of_one_size_says_so(tmp_path: Path) -> None:
    path = write_photo(tmp_path / "photo.png", (40, 30))
    with opened(of_photos(8, picture_size=None)) as client:
        answer = send(client, path.read_bytes(), "photo.png")
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("'photo.png' is a colour picture of 40 × 30 pixels, but")


def test_only_pictures_that_fit_are_drawn() -> None:
    with opened(of_photos(8)) as client:
        shapes = {"3x8x8": 192, "3x16x16": 768, "1x8x8": 64, "3x-1x8": 480, "3x8x-1": 192}
        for shape, size in shapes.items():
            asked = client.get("/api/picture", params={"text": f"picture {shape} {'7f' * size}"})
            assert asked.status_code == (200 if shape == "3x8x8" else 400), shape
        assert client.get("/api/picture", params={"text": "a" * 20_001}).status_code == 422


def test_a_server_that_was_restarted_asks_for_the_file_again(tmp_path: Path) -> None:
    bundle, path = of_photos(), write_photo(tmp_path / "photo.png", (200, 100))
    with opened(bundle) as client:
        name = send(client, path.read_bytes(), "photo.png").json()["text"]
    with opened(bundle) as client:
        for path_of in ("attention", "verdict"):
            answer = client.post(f"/api/{path_of}", json={"text": name})
            assert (answer.status_code, answer.json()) == (400, {"error": GONE})
        assert send(client, path.read_bytes(), "photo.png").json()["text"] == name  # a link to it works again
        assert client.post("/api/verdict", json={"text": name}).status_code == 200


def test_the_pictures_used_last_are_kept(tmp_path: Path) -> None:
    session, files = Session(of_photos()), []
    for number in range(4):
        Image.new("RGB", (SIDE, SIDE), (number, 0, 0)).save(tmp_path / "a.png")
        files.append((tmp_path / "a.png").read_bytes())
    kept = Pictures(room=60_000)  # two of 24,590 letters
    first, second = (kept.read(session, content, "a.png") for content in files[:2])
    kept.whole(session, first)
    third = kept.read(session, files[2], "a.png")
    assert all(pixels_of(kept.whole(session, one)).shape == (3, SIDE, SIDE) for one in (first, third))
    with pytest.raises(UserError, match=GONE):
        kept.whole(session, second)
    tight = Pictures(room=1)
    assert tight.whole(session, tight.read(session, files[3], "a.png"))  # the newest is kept in any case


def test_examples_of_a_large_model_have_short_names(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 512, 512), np.uint8)
    (tmp_path / "training" / "data").mkdir(parents=True)
    rows = "".join(f"{json.dumps([as_text(one), 0])}\n" for one in pixels)
    (tmp_path / "training" / "data" / "validation.jsonl").write_text(rows)
    with opened(of_photos(512), folder=tmp_path) as client:  # and a fresh one knows them by their names
        listed = client.get("/api/models")
        assert len(listed.content) < 10_000
        for name, expected in zip(listed.json()["models"][0]["examples"], pixels, strict=True):
            png = client.get("/api/picture", params={"text": name}).content
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))).transpose(2, 0, 1), expected)
            assert client.post("/api/verdict", json={"text": name}).status_code == 200
