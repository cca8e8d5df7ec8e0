package models

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
)

// upload is the body of a load call. Files are encoded as they are sent, so none is
// held in memory.
type upload struct {
	parts  []io.Reader
	files  []*os.File
	length int64
	sent   atomic.Int64
}

// newUpload takes the path of a config ("": none) and VERSION/PATH=FILE for each file.
// The caller closes what it gets.
// Source: the model repository extension: parameters "config" and "file:<version>/<path>".
func newUpload(config string, files []string) (u *upload, err error) {
	u = &upload{}
	if config == "" && len(files) > 0 {
		return nil, usageError{errors.New("--file needs --config: the server takes the model from the files alone then, not from its folder")}
	}
	if config == "" {
		return u, nil
	}
	text, err := readConfig(config)
	if err != nil {
		return nil, err
	}
	quoted, err := json.Marshal(string(text))
	if err != nil {
		return nil, err
	}
	u.text(`{"parameters":{"config":` + string(quoted))
	for _, f := range files {
		if err := u.file(f); err != nil {
			return nil, errors.Join(err, u.close())
		}
	}
	u.text("}}")
	return u, nil
}

func (u *upload) text(s string) {
	u.parts = append(u.parts, strings.NewReader(s))
	u.length += int64(len(s))
}

func (u *upload) file(arg string) error {
	name, from, ok := strings.Cut(arg, "=")
	version, rest, _ := strings.Cut(name, "/")
	if _, err := strconv.ParseInt(version, 10, 64); !ok || err != nil || rest == "" || path.Clean(name) != name || strings.Contains(name, "..") {
		return usageError{fmt.Errorf("--file: '%s' is not <version>/<path>=<file>", arg)}
	}
	f, err := os.Open(from)
	if err != nil {
		return usageError{fmt.Errorf("--file: %w", err)}
	}
	u.files = append(u.files, f)
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return usageError{fmt.Errorf("--file: '%s' is no plain file", from)}
	}
	key, err := json.Marshal("file:" + name)
	if err != nil {
		return err
	}
	u.text("," + string(key) + `:"`)
	u.parts = append(u.parts, &encoder{from: io.LimitReader(f, info.Size()), left: info.Size()})
	u.length += int64(base64.StdEncoding.EncodedLen(int(info.Size())))
	u.text(`"`)
	return nil
}

func (u *upload) body() body {
	if u.length == 0 {
		return body{}
	}
	return body{&counter{io.MultiReader(u.parts...), &u.sent}, u.length}
}

func (u *upload) close() error {
	var errs []error
	for _, f := range u.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// counter counts what is read through it.
type counter struct {
	io.Reader
	n *atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// encoder gives a file of known size in base64.
type encoder struct {
	from io.Reader
	left int64
	out  []byte // encoded and not yet given
}

func (e *encoder) Read(p []byte) (int, error) {
	if len(e.out) == 0 {
		if e.left == 0 {
			return 0, io.EOF
		}
		raw := make([]byte, min(e.left, 48<<10)) // a multiple of three but for the last
		if _, err := io.ReadFull(e.from, raw); err != nil {
			return 0, fmt.Errorf("a file became shorter while it was sent: %w", err)
		}
		e.left -= int64(len(raw))
		e.out = base64.StdEncoding.AppendEncode(nil, raw)
	}
	n := copy(p, e.out)
	e.out = e.out[n:]
	return n, nil
}

// readConfig reads a config: JSON as it is, anything else as config.pbtxt, which becomes
// the JSON that servers take.
func readConfig(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError{fmt.Errorf("--config: %w", err)}
	}
	if trimmed := bytes.TrimSpace(text); bytes.HasPrefix(trimmed, []byte("{")) {
		if !json.Valid(trimmed) {
			return nil, usageError{fmt.Errorf("--config: %s is not JSON", file)}
		}
		return trimmed, nil
	}
	cfg, _, err := modelconfig.Parse(file, text)
	if err != nil {
		return nil, usageError{fmt.Errorf("--config: %w", err)}
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(cfg)
}
