package forest

import (
	"bytes"
	"io"
	"os"
)

// Format is what a file holds.
type Format int

// The formats. The numbers are those of enum sl_format, forest.h.
const (
	XGBoost       Format = iota // legacy binary, which XGBoost wrote until 3.0
	XGBoostJSON                 // from XGBoost 1.0 on
	XGBoostUBJSON               // the default of XGBoost from 2.1 on
	LightGBM                    // text
	Checkpoint                  // treelite's own, from version 3.9 on
)

// Task is what a model was trained for. Source: TaskType of treelite.
type Task int

// The tasks.
const (
	BinaryClassifier Task = iota
	Regressor
	MultiClassifier
	Ranking
	IsolationForest
)

// Classifies says that its answers are classes, or their probabilities.
func (t Task) Classifies() bool { return t == BinaryClassifier || t == MultiClassifier }

// head is how many bytes of a file tell its format.
const head = 64

// Detect says what a file seems to hold; ok is false where its beginning does not tell. An error is that of reading.
func Detect(path string) (f Format, ok bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = file.Close() }()
	b := make([]byte, head)
	n, err := io.ReadFull(file, b)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return 0, false, err
	}
	f, ok = detect(b[:n])
	return f, ok, nil
}

// detect looks at a file's first bytes.
func detect(b []byte) (Format, bool) {
	rest := bytes.TrimLeft(b, " \t\r\n")
	switch {
	case bytes.HasPrefix(rest, []byte("tree\n")), bytes.HasPrefix(rest, []byte("tree\r\n")):
		return LightGBM, true
	case bytes.HasPrefix(b, []byte("binf")):
		return XGBoost, true
	case len(b) > 1 && b[0] == '{' && bytes.IndexByte([]byte("LliIUSN$#"), b[1]) >= 0:
		return XGBoostUBJSON, true
	case bytes.HasPrefix(rest, []byte("{")):
		if rest = bytes.TrimLeft(rest[1:], " \t\r\n"); bytes.HasPrefix(rest, []byte(`"`)) {
			return XGBoostJSON, true
		}
	case len(b) >= 12 && b[0] >= 3 && b[0] <= 9 && b[1]|b[2]|b[3] == 0 && b[5]|b[6]|b[7] == 0 && b[9]|b[10]|b[11] == 0:
		return Checkpoint, true // major, minor and patch version, as i32
	}
	return 0, false
}
