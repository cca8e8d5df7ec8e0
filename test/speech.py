"""A recording to try the speech detector on, and what its package makes of it."""
import ast
import pathlib
import types
import wave
import zipfile

import numpy as np

RATE = 16000


def syllables(rng, seconds, pitch):
    """Something like vowels: pulses of a wandering pitch through resonances that change with each syllable."""
    n = int(seconds * RATE)
    out = np.zeros(n)
    at = 0
    while at < n:
        length = min(int(RATE * rng.uniform(0.12, 0.25)), n - at)
        f0 = pitch * rng.uniform(0.85, 1.15) * np.linspace(1.05, 0.92, length)
        phase = np.cumsum(f0 / RATE)
        pulses = np.diff(np.floor(phase), prepend=0.0) + 0.01 * rng.standard_normal(length)
        for f, width in zip(((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))[rng.integers(5)],
                            (60, 90, 120)):
            r = np.exp(-np.pi * width / RATE)
            a, b = 2 * r * np.cos(2 * np.pi * f / RATE), -r * r
            y = np.zeros(length)
            for i in range(length):
                y[i] = pulses[i] + a * (y[i - 1] if i else 0) + b * (y[i - 2] if i > 1 else 0)
            pulses = y
        pulses /= np.abs(pulses).max() + 1e-9
        out[at:at + length] = pulses * np.hanning(length) ** 0.3
        at += length
    return out


def recording():
    """Int16 samples: silence, speech, noise, speech, silence. The same bytes every time."""
    rng = np.random.default_rng(5)
    parts = [np.zeros(RATE), 0.5 * syllables(rng, 1.9, 120), 0.002 * rng.standard_normal(RATE), 0.5 * syllables(rng, 1.3, 210),
             0.001 * rng.standard_normal(int(0.83 * RATE))]
    return (np.concatenate(parts) * 32767).clip(-32768, 32767).astype("<i2")


def write(path, data):
    with wave.open(str(path), "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(RATE)
        w.writeframes(data.tobytes())


class Package:
    """The package's own code out of its wheel. It asks for torch alone for arrays, and so little that numpy stands in."""

    def __init__(self, wheel, folder):
        with zipfile.ZipFile(wheel) as z:
            source = z.read("silero_vad/utils_vad.py").decode()
            self.model = pathlib.Path(folder) / "silero_vad.onnx"
            self.model.write_bytes(z.read("silero_vad/data/silero_vad.onnx"))
        wanted = ("OnnxWrapper", "get_speech_timestamps_from_probs")
        tree = ast.parse(source)
        tree.body = [n for n in tree.body if getattr(n, "name", "") in wanted]
        names = {"torch": torch_of_numpy(), "List": list, "np": np, "warnings": types.SimpleNamespace(warn=print)}
        exec(compile(tree, "utils_vad.py", "exec"), names)  # noqa: S102 - the package under test
        self.wrapper, self.timestamps = names["OnnxWrapper"], names["get_speech_timestamps_from_probs"]

    def probabilities(self, sound):
        model = self.wrapper(str(self.model), force_onnx_cpu=True)
        chunks = np.pad(sound, (0, -len(sound) % 512)).reshape(-1, 512)
        return [float(model(c[np.newaxis].view(Array), RATE)[0, 0]) for c in chunks]


class Array(np.ndarray):
    def dim(self):
        return self.ndim

    def float(self):
        return self.astype(np.float32)

    def numpy(self):
        return np.asarray(self)


def torch_of_numpy():
    def zeros(*shape):
        return np.zeros(shape[0] if isinstance(shape[0], tuple) else shape, np.float32).view(Array)

    return types.SimpleNamespace(zeros=zeros, cat=lambda parts, dim: np.concatenate(parts, axis=dim).view(Array),
                                 from_numpy=lambda a: a.view(Array), Tensor=Array)
