"""The stateful demo model finds the same speech as the package that ships it."""
import json
import subprocess
import sys

import numpy as np
import pytest

import find_speech
import harness
import speech


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    wheels = list((harness.ROOT / ".cache" / "wheels").glob("silero_vad-*.whl"))
    if not wheels:
        pytest.skip("silero-vad's wheel is not in .cache/wheels: make models")
    return speech.Package(wheels[0], tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def sound(package):
    data = speech.recording().astype(np.float32) / 32768
    chances = package.probabilities(data)
    assert max(chances) > 0.9 and min(chances) < 0.1
    return data, chances, package.timestamps(chances, audio_length_samples=len(data))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_as_the_package(server, sound, protocol):
    data, chances, parts = sound
    got = list(find_speech.probabilities(data, getattr(server, protocol), protocol == "grpc"))
    assert got == pytest.approx(chances, abs=1e-5)
    assert [{"start": a, "end": b} for a, b in find_speech.padded(find_speech.spoken(got, len(data)), len(data))] == parts
    assert len(parts) == 2


def test_the_example(server, sound, tmp_path):
    speech.write(tmp_path / "a.wav", speech.recording())
    command = [sys.executable, str(harness.ROOT / "examples" / "find_speech.py"), str(tmp_path / "a.wav"), f"--url={server.grpc}", "--grpc"]
    told = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, timeout=60).stdout)
    assert told == [{k: v / 16000 for k, v in part.items()} for part in sound[2]]
    lines = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True).stdout.splitlines()
    assert lines == [f"{part['start']:8.2f} s to {part['end']:8.2f} s" for part in told]


def test_random_cuts_as_the_package(package):
    """The example's way from probabilities to speech, against the package's own, on walks up and down."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        chances = np.clip(np.cumsum(rng.normal(0, 0.2, 150)) % 1.3 - 0.1, 0, 1).tolist()
        length = 150 * 512 - int(rng.integers(512))
        got = [{"start": a, "end": b} for a, b in find_speech.padded(find_speech.spoken(chances, length), length)]
        assert got == package.timestamps(chances, audio_length_samples=length)
