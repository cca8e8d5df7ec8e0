package agent

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/infer"
)

// Checksum is the name of the agent that compares files with sums: each parameter's key
// is <algorithm>:<path in the model folder>, its value the sum in hexadecimal digits.
// Algorithms are MD5 and SHA256, in any case.
// Source: README.md and src/checksum.cc of the original's checksum agent; SHA256, files
// that are streamed, and paths that can't leave the folder are ours.
const Checksum = "checksum"

type checksum struct{}

func (checksum) run(ctx context.Context, c *call) (string, error) {
	if c.event != Load {
		return "", nil
	}
	root, err := os.OpenRoot(c.location)
	if err != nil {
		return "", infer.Errorf(infer.InvalidArg, "failed to read the model folder: %s", strerror(err))
	}
	defer root.Close()
	for _, key := range slices.Sorted(maps.Keys(c.parameters)) {
		if err := verify(ctx, root, key, c.parameters[key]); err != nil {
			return "", err
		}
	}
	return "", nil
}

// verify compares one file.
func verify(ctx context.Context, root *os.Root, key, want string) error {
	algorithm, path, ok := strings.Cut(key, ":")
	if !ok {
		return infer.Errorf(infer.InvalidArg, "failed to parse key: %s", key)
	}
	var sum hash.Hash
	switch strings.ToLower(algorithm) {
	case "md5":
		algorithm, sum = "MD5", md5.New()
	case "sha256", "sha-256":
		algorithm, sum = "SHA256", sha256.New()
	default:
		return infer.Errorf(infer.Unsupported, "Unsupported checksum algorithm: %s", algorithm)
	}
	if !modelconfig.SafePath(path) {
		return infer.Errorf(infer.InvalidArg, "file path '%s' is outside model directory", path)
	}
	if err := digest(ctx, root, path, sum); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); !strings.EqualFold(got, want) {
		return infer.Errorf(infer.InvalidArg, "Mismatched %s hash for file %s, expect: %s, got: %s", algorithm, path, want, got)
	}
	return nil
}

func digest(ctx context.Context, root *os.Root, path string, sum hash.Hash) error {
	fail := func(err error) error {
		if ctx.Err() != nil {
			return infer.Errorf(infer.Unavailable, "the checksum of %s was not finished: %w", path, context.Cause(ctx))
		}
		return infer.Errorf(infer.InvalidArg, "failed to open text file for read %s: %s", path, strerror(err))
	}
	info, err := root.Stat(path) // opening a pipe would wait for its writer
	if err != nil {
		return fail(err)
	}
	if !info.Mode().IsRegular() {
		return infer.Errorf(infer.InvalidArg, "failed to open text file for read %s: it is no plain file", path)
	}
	f, err := root.Open(path)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	buf := make([]byte, 256<<10)
	for {
		n, err := f.Read(buf)
		sum.Write(buf[:n]) // never fails
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return fail(err)
		}
	}
}

// strerror is the system's text of an error, as C has it: beginning with a capital.
func strerror(err error) string {
	var no syscall.Errno
	if !errors.As(err, &no) {
		return err.Error()
	}
	text := no.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}
