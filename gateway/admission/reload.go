package admission

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// read reads and parses a limits file.
func read(path string) (*Rules, []byte, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("limits file: %w", err)
	}
	rules, err := Parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("limits file %s: %w", path, err)
	}
	return rules, text, nil
}

func readFile(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	return io.ReadAll(io.LimitReader(f, MaxFile+1))
}

// watched is the file as it was when it was looked at last.
type watched struct {
	path  string
	text  []byte // nil: not yet
	error string // of the last look; "": none
}

// follow looks at the file and takes it if it is another one and right. What is wrong
// with it is told once.
func (l *Limits) follow(f *watched) {
	if f.path == "" {
		return
	}
	text, err := readFile(f.path)
	if err == nil && f.error == "" && bytes.Equal(text, f.text) {
		return
	}
	var rules *Rules
	if err == nil {
		rules, err = Parse(text)
	}
	switch {
	case err != nil && err.Error() == f.error:
		return
	case err != nil:
		f.error = err.Error()
		l.log.Error("the limits file is wrong; the limits stay as they are", slog.String("file", f.path), slog.String("error", f.error))
	default:
		f.error, f.text = "", text
		l.use(rules)
		l.log.Info("the limits file was read", slog.String("file", f.path), slog.Int("rules", len(rules.rules)))
	}
	l.reloaded(err)
}
