package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// progress counts what was fetched.
type progress struct{ files, bytes atomic.Int64 }

func (p *progress) add(bytes int64) {
	p.files.Add(1)
	p.bytes.Add(bytes)
}

func (p *progress) read() (files, bytes int64) { return p.files.Load(), p.bytes.Load() }

// room makes sure that so many bytes more fit into the cache, by removing the copies of
// repositories that no server holds, the ones unused for longest first. The
// repository's own copies are never removed for it.
func (r *repository) room(need int64) error {
	if r.cfg.MaxBytes <= 0 || need == 0 {
		return nil
	}
	used, err := r.objects.used()
	if err != nil || used+need <= r.cfg.MaxBytes {
		return err
	}
	idle, err := r.idle()
	if err != nil {
		return err
	}
	for _, one := range idle {
		if err := one.remove(); err != nil {
			return err
		}
		if err := r.drop(youngest); err != nil {
			return err
		}
		if used, err = r.objects.used(); err != nil || used+need <= r.cfg.MaxBytes {
			return err
		}
	}
	return fmt.Errorf("%d bytes more are needed, and the cache '%s' holds %d of at most %d (--cloud-cache-byte-size)", need, r.objects.dir, used, r.cfg.MaxBytes)
}

// idleRepository is the folder of a repository that no server holds.
type idleRepository struct {
	dir  string
	used time.Time // when its manifest was last written
}

func (r *repository) idle() ([]idleRepository, error) {
	entries, err := os.ReadDir(filepath.Join(r.objects.dir, "repositories"))
	if err != nil {
		return nil, err
	}
	var all []idleRepository
	for _, e := range entries {
		dir := filepath.Join(r.objects.dir, "repositories", e.Name())
		if dir == r.dir {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, "manifest.json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, idleRepository{dir, info.ModTime()})
	}
	slices.SortFunc(all, func(a, b idleRepository) int { return a.used.Compare(b.used) })
	return all, nil
}

// remove empties a repository's folder, unless a server holds it. The lock's file
// stays, since another server may have it open.
func (i *idleRepository) remove() error {
	lock, err := os.OpenFile(filepath.Join(i.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	err = flock(lock, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return lock.Close()
	}
	for _, name := range []string{"manifest.json", "view", "trees", "tmp"} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(i.dir, name)))
	}
	return errors.Join(err, lock.Close())
}

// collect removes repositories that no server has asked for in a long time, and objects
// that no repository's manifest names. It does nothing while another server syncs: that
// one does it then.
func (r *repository) collect() error {
	release, ok, err := r.objects.lock(true)
	if err != nil || !ok {
		return err
	}
	idle, err := r.idle()
	for _, one := range idle {
		if time.Since(one.used) > r.cfg.Forget {
			err = errors.Join(err, one.remove())
		}
	}
	return errors.Join(err, r.drop(0), release())
}

// youngest is the age of objects that may be removed while other servers sync: what is
// younger one of them may be about to name.
const youngest = time.Hour

// drop removes the objects that no manifest names and that are older than age. Trees
// hold links of their own, so one that is still in use loses nothing.
func (r *repository) drop(age time.Duration) error {
	named := map[string]bool{}
	manifests, err := filepath.Glob(filepath.Join(r.objects.dir, "repositories", "*", "manifest.json"))
	if err != nil {
		return err
	}
	name := func(m *manifest) {
		for _, record := range m.Models {
			for _, o := range record.Objects {
				named[o.SHA256] = true
			}
		}
	}
	name(&r.manifest)
	for _, path := range manifests {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var m manifest
		if json.Unmarshal(text, &m) == nil { // one that is damaged names nothing
			name(&m)
		}
	}
	return r.objects.each(func(sum string, info fs.FileInfo) error {
		if named[sum] || time.Since(info.ModTime()) < age {
			return nil
		}
		return r.objects.drop(sum)
	})
}
