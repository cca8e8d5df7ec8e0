package cloud

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"
	"time"

	"gocloud.dev/blob"
)

// download is one object on its way to a file.
type download struct {
	bucket *Bucket
	key    string
	object *object
	stall  time.Duration

	file *os.File
	at   int64 // bytes in file
	sha  hash.Hash
	md5  hash.Hash
}

// errChanged is the error of an object that is not the listed one any more.
var errChanged = errors.New("it has changed since it was listed")

// fetch writes an object to a file below temp and gives that file's path and SHA-256.
// A try after a failure goes on where the last one ended, where the bucket can say that
// it is the same object. Nothing is left after an error.
func (b *Bucket) fetch(ctx context.Context, key string, o *object, cfg *Config, temp string) (path, sum string, err error) {
	f, err := os.CreateTemp(temp, "object-")
	if err != nil {
		return "", "", err
	}
	d := &download{bucket: b, key: key, object: o, stall: cfg.Stall, file: f, sha: sha256.New(), md5: md5.New()}
	err = again(ctx, cfg.Tries, cfg.Pause, func() error { return d.try(ctx) })
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", "", fmt.Errorf("fetching '%s': %w", key, errors.Join(err, os.Remove(f.Name())))
	}
	return f.Name(), hex.EncodeToString(d.sha.Sum(nil)), nil
}

func (d *download) try(ctx context.Context) error {
	exact := d.object.tag() != "" && d.bucket.Exact != nil
	if !exact || d.at > d.object.Size {
		if err := d.restart(); err != nil {
			return err
		}
	}
	if d.at == d.object.Size && d.at > 0 {
		return d.compare() // a try before had read it all, and failed after that
	}
	ctx, beat, stop := watch(ctx, d.stall)
	defer stop()
	r, err := d.bucket.NewRangeReader(ctx, d.key, d.at, -1, &blob.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		if !exact {
			return nil
		}
		return d.bucket.Exact(as, d.object.tag())
	}})
	if err != nil {
		return because(ctx, err)
	}
	err = d.read(ctx, r, beat)
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	return d.compare()
}

func (d *download) read(ctx context.Context, r io.Reader, beat func()) error {
	buf := make([]byte, 256<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			beat()
			if d.at+int64(n) > d.object.Size {
				return fmt.Errorf("%w: more than its %d bytes came", errChanged, d.object.Size)
			}
			if _, err := d.file.Write(buf[:n]); err != nil {
				return err
			}
			d.at += int64(n)
			d.sha.Write(buf[:n])
			d.md5.Write(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return because(ctx, err)
		}
	}
}

// compare checks what came against the listing.
func (d *download) compare() error {
	if d.at != d.object.Size {
		err := fmt.Errorf("%w: %d bytes came, not %d", errChanged, d.at, d.object.Size)
		return errors.Join(err, d.restart())
	}
	if got := d.md5.Sum(nil); len(d.object.md5) == md5.Size && !bytes.Equal(got, d.object.md5) {
		err := fmt.Errorf("%w: its MD5 is %x, not %x", errChanged, got, d.object.md5)
		return errors.Join(err, d.restart())
	}
	return nil
}

func (d *download) restart() error {
	d.at = 0
	d.sha.Reset()
	d.md5.Reset()
	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return d.file.Truncate(0)
}

// parallel runs do for all of n with a bounded number of goroutines and waits for them;
// the first error keeps what has not begun from beginning.
func parallel(ctx context.Context, n, most int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tokens := make(chan struct{}, max(1, most))
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for i := range n {
		select {
		case tokens <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-tokens }()
			if err := do(ctx, i); err != nil {
				once.Do(func() { first = err; cancel(err) })
			}
		})
	}
	wg.Wait()
	if first == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return first
}
