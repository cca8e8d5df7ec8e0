package cloud

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// objects is the content-addressed part of a cache folder. It is shared by all servers
// that use the folder.
type objects struct {
	dir string // the cache folder

	mu      sync.Mutex
	checked map[string]bool // mu; objects whose bytes this process has compared with their name
}

// openObjects makes the cache folder where it is not there. In a folder that others may
// write, as those that are mounted into containers often are, the cache is a folder of
// this user's own: whoever could put files there would be served.
func openObjects(dir string) (*objects, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o022 != 0 {
		dir = filepath.Join(dir, "sluice-cloud")
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := own(dir); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "objects"), 0o700); err != nil {
		return nil, err
	}
	return &objects{dir: dir, checked: map[string]bool{}}, nil
}

// own says whether dir is a folder of this user that nobody else may write.
func own(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm()&0o022 != 0 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("others could have put files into '%s'; they would be served", dir)
	}
	return nil
}

func (o *objects) path(sum string) string { return filepath.Join(o.dir, "objects", sum[:2], sum) }

// have says whether an object is there and whole. The first time its bytes are read;
// one that is damaged is removed, and the error says so.
func (o *objects) have(ctx context.Context, sum string, size int64) (bool, error) {
	if len(sum) != 2*sha256.Size {
		return false, nil
	}
	info, err := os.Lstat(o.path(sum))
	if err != nil || !info.Mode().IsRegular() {
		return false, nil // fetched again, and what is wrong with the folder said then
	}
	o.mu.Lock()
	checked := o.checked[sum]
	o.mu.Unlock()
	if checked && info.Size() == size {
		return true, nil
	}
	got, err := hashFile(ctx, o.path(sum))
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err == nil && info.Size() == size && got == sum {
		o.trust(sum)
		return true, nil
	}
	return false, errors.Join(fmt.Errorf("cached object %s is damaged", sum), os.Remove(o.path(sum)))
}

func (o *objects) trust(sum string) {
	o.mu.Lock()
	o.checked[sum] = true
	o.mu.Unlock()
}

// add moves a file that was written, synced and compared to its place.
func (o *objects) add(temp, sum string) error {
	if err := os.Chmod(temp, 0o400); err != nil {
		return err
	}
	dir := filepath.Dir(o.path(sum))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Rename(temp, o.path(sum)); err != nil {
		return err
	}
	o.trust(sum)
	return syncDir(dir)
}

// drop removes an object.
func (o *objects) drop(sum string) error {
	o.mu.Lock()
	delete(o.checked, sum)
	o.mu.Unlock()
	if err := os.Remove(o.path(sum)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// used is the bytes of all objects.
func (o *objects) used() (int64, error) {
	var sum int64
	err := o.each(func(_ string, info fs.FileInfo) error {
		sum += info.Size()
		return nil
	})
	return sum, err
}

func (o *objects) each(do func(sum string, info fs.FileInfo) error) error {
	return filepath.WalkDir(filepath.Join(o.dir, "objects"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another server removed it
		}
		if err != nil {
			return err
		}
		return do(e.Name(), info)
	})
}

// lock takes part in the use of the folder, so that no server removes objects that
// another is about to link, or, exclusively, is for the one that removes: ok is false
// then when others take part.
func (o *objects) lock(exclusive bool) (release func() error, ok bool, err error) {
	f, err := os.OpenFile(filepath.Join(o.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX | unix.LOCK_NB
	}
	err = flock(f, how)
	if exclusive && errors.Is(err, unix.EWOULDBLOCK) {
		return nil, false, f.Close()
	}
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return f.Close, true, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// hashFile reads a file's bytes.
func hashFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum, buf := sha256.New(), make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		sum.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return "", err
		}
	}
}

// syncDir makes the names in a folder durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// writeFile replaces a file as a whole, durably. temp is a folder of the same file
// system.
func writeFile(path string, data []byte, temp string) error {
	f, err := os.CreateTemp(temp, "file-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(path))
}
