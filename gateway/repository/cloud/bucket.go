package cloud

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// Bucket is an open bucket.
type Bucket struct {
	*blob.Bucket
	// Tag is what a listed object's content is known by: its ETag or generation; nil, or
	// "" for an object: its MD5 or else its time.
	Tag func(o *blob.ListObject) string
	// Exact makes a read fail when the object's tag has changed since it was listed; nil:
	// this bucket can't.
	Exact func(as func(any) bool, tag string) error
}

// Open opens the bucket of a location. The caller closes it.
type Open func(ctx context.Context, l Location, c Credential) (*Bucket, error)

// object is one object of a model.
type object struct {
	Path    string `json:"path"` // in the model's folder; a folder's ends with a slash
	Size    int64  `json:"size"`
	Version string `json:"version"` // kind:value, where kind is tag, md5 or time
	SHA256  string `json:"sha256"`  // "" until it was fetched, and for folders
	md5     []byte // as the cloud says; nil: it does not
}

func (o *object) folder() bool { return strings.HasSuffix(o.Path, "/") }

// tag is the object's tag, "" where it has none.
func (o *object) tag() string {
	tag, _ := strings.CutPrefix(o.Version, "tag:")
	if tag == o.Version {
		return ""
	}
	return tag
}

func (b *Bucket) object(path string, o *blob.ListObject) object {
	out := object{Path: path, Size: o.Size, md5: o.MD5}
	tag := ""
	if b.Tag != nil {
		tag = b.Tag(o)
	}
	switch {
	case tag != "":
		out.Version = "tag:" + tag
	case len(o.MD5) > 0:
		out.Version = "md5:" + hex.EncodeToString(o.MD5)
	default:
		out.Version = "time:" + o.ModTime.UTC().Format(time.RFC3339Nano)
	}
	return out
}

// listing is what a repository holds: model → objects in the order of their keys.
type listing struct {
	models map[string][]object
	faults map[string]error // models that can't be files of this machine
	keys   int              // all that were listed
}

// maxObjects bounds a repository's objects.
const maxObjects = 1_000_000

// list reads the keys of all models, or of one.
func (b *Bucket) list(ctx context.Context, l Location, model string, stall time.Duration) (*listing, error) {
	prefix := l.dir()
	if model != "" {
		prefix += model + "/"
	}
	ctx, beat, stop := watch(ctx, stall)
	defer stop()
	out := &listing{models: map[string][]object{}, faults: map[string]error{}}
	it := b.List(&blob.ListOptions{Prefix: prefix})
	for n := 0; ; n++ {
		o, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, because(ctx, err)
		}
		beat()
		out.keys++
		if n == maxObjects {
			return nil, fmt.Errorf("%s holds more than %d objects", l, maxObjects)
		}
		name, path, ok := strings.Cut(strings.TrimPrefix(o.Key, l.dir()), "/")
		if !ok || strings.HasPrefix(name, ".") {
			continue // a file beside the models, or hidden
		}
		if err := checkKey(name, path); err != nil {
			out.faults[name] = fmt.Errorf("object '%s' can't be a file: %w", o.Key, err)
			continue
		}
		objects := out.models[name]
		if path != "" { // else the mark of the model's own folder
			objects = append(objects, b.object(path, o))
		}
		out.models[name] = objects
	}
}

// checkKey says whether a key of a model can be a path below the model's folder.
func checkKey(model, path string) error {
	if model == "" {
		return errors.New("it has an empty part")
	}
	parts := strings.Split(strings.TrimSuffix(path, "/"), "/")
	if path == "" {
		parts = nil
	}
	for _, p := range append(parts, model) {
		switch {
		case p == "":
			return errors.New("it has an empty part")
		case p == "." || p == "..":
			return fmt.Errorf("it has a part '%s'", p)
		case len(p) > 255:
			return fmt.Errorf("a part of it has %d bytes, more than 255", len(p))
		case strings.ContainsAny(p, "\x00\\"):
			return errors.New("it has a zero byte or a backslash")
		}
	}
	return nil
}

// watch gives a context that ends when beat was not called for so long.
func watch(ctx context.Context, stall time.Duration) (context.Context, func(), context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(stall, func() { cancel(fmt.Errorf("nothing came for %s", stall)) })
	return ctx, func() { timer.Reset(stall) }, func() { timer.Stop(); cancel(nil) }
}

// because is err, or why the context ended if that is why.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// passing says that a further try may help.
func passing(ctx context.Context, err error) bool {
	switch gcerrors.Code(err) {
	case gcerrors.NotFound, gcerrors.PermissionDenied, gcerrors.InvalidArgument, gcerrors.Unimplemented:
		return false
	}
	return ctx.Err() == nil
}

// again runs f until it succeeds, its error is final, or tries are over. The pauses
// double from first on, with some randomness.
func again(ctx context.Context, tries int, first time.Duration, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || try >= tries || !passing(ctx, err) {
			return err
		}
		pause := time.NewTimer(first + rand.N(first))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
		first *= 2
	}
}
