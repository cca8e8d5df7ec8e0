package cloud

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// manifest says what a repository's copies consist of. It is manifest.json.
type manifest struct {
	Format   int                    `json:"format"` // 1
	Location string                 `json:"location"`
	Models   map[string]modelRecord `json:"models"`
}

// modelRecord is one model that is whole in the cache.
type modelRecord struct {
	Objects []object  `json:"objects"`
	Synced  time.Time `json:"synced"` // when it was last known to be what the cloud holds
}

// id is a name for the content of a model.
func (m *modelRecord) id() string {
	sum := sha256.New()
	for _, o := range m.Objects {
		fmt.Fprintf(sum, "%s\x00%d\x00%s\n", o.Path, o.Size, o.SHA256)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// repository is one repository in a cache, held by this process.
type repository struct {
	path     string // as it was given
	location Location
	cfg      *Config
	objects  *objects
	dir      string
	lock     *os.File
	log      *slog.Logger
	busy     chan struct{} // a token for who works on what follows

	open     *Bucket // nil: closed
	manifest manifest
	trees    map[string]string    // model → name below trees of what its link points to
	retired  map[string]time.Time // trees that no link points to any more, since when
	made     int                  // trees made, for their names
	away     bool                 // the last listing failed, and the log has it
}

// claim takes a repository's folder in a cache for this process. A folder that another
// server holds is left to it; this one then has copies of its own, of the same objects.
func claim(path string, l Location, cfg *Config, o *objects) (*repository, error) {
	for n := range 64 {
		name := l.folder()
		if n > 0 {
			name += "." + strconv.Itoa(n)
		}
		dir := filepath.Join(o.dir, "repositories", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		switch err := flock(lock, unix.LOCK_EX|unix.LOCK_NB); {
		case errors.Is(err, unix.EWOULDBLOCK):
			if err := lock.Close(); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, errors.Join(err, lock.Close())
		}
		r := &repository{path: path, location: l, cfg: cfg, objects: o, dir: dir, lock: lock, log: cfg.Log,
			busy: make(chan struct{}, 1), trees: map[string]string{}, retired: map[string]time.Time{}}
		if err := r.begin(); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		return r, nil
	}
	return nil, fmt.Errorf("64 servers hold copies of %s in '%s' already", l, o.dir)
}

// begin removes what a process before has left, but for objects and the manifest.
func (r *repository) begin() error {
	for _, sub := range []string{"trees", "view", "tmp"} {
		if err := errors.Join(os.RemoveAll(filepath.Join(r.dir, sub)), os.MkdirAll(filepath.Join(r.dir, sub), 0o700)); err != nil {
			return err
		}
	}
	r.manifest = manifest{Format: 1, Location: r.location.String(), Models: map[string]modelRecord{}}
	text, err := os.ReadFile(filepath.Join(r.dir, "manifest.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil || m.Format != 1 || m.Location != r.location.String() || !m.sound() {
		r.log.Warn(fmt.Sprintf("the list of copies of %s is damaged; everything is fetched again", r.location), "error", err)
		return nil
	}
	r.manifest.Models = m.Models
	return nil
}

// sound says that all names in a manifest could be in a listing.
func (m *manifest) sound() bool {
	for name, record := range m.Models {
		if err := checkKey(name, ""); err != nil {
			return false
		}
		for _, o := range record.Objects {
			if err := checkKey(name, o.Path); err != nil || o.Path == "" {
				return false
			}
		}
	}
	return m.Models != nil
}

func (r *repository) view() string { return filepath.Join(r.dir, "view") }

// take waits for the repository's token.
func (r *repository) take(ctx context.Context) error {
	select {
	case r.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// show makes a model's folder what its record says: a new tree, unless it is so already.
// All objects are in the cache.
func (r *repository) show(name string, record modelRecord) error {
	id := record.id()
	if at, ok := r.trees[name]; ok && strings.HasPrefix(at, id+"-") {
		return nil
	}
	temp, err := os.MkdirTemp(filepath.Join(r.dir, "tmp"), "tree-")
	if err != nil {
		return err
	}
	if err := r.build(temp, record); err != nil {
		return errors.Join(fmt.Errorf("model '%s' of %s: %w", name, r.location, err), os.RemoveAll(temp))
	}
	r.made++
	tree := id + "-" + strconv.Itoa(r.made)
	if err := os.Rename(temp, filepath.Join(r.dir, "trees", tree)); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	link := filepath.Join(r.dir, "tmp", "link-"+strconv.Itoa(r.made))
	if err := os.Symlink(filepath.Join("..", "trees", tree), link); err != nil {
		return err
	}
	if err := os.Rename(link, filepath.Join(r.view(), name)); err != nil {
		return errors.Join(err, os.Remove(link))
	}
	r.retire(name)
	r.trees[name] = tree
	return nil
}

// build lays a model's files out below dir.
func (r *repository) build(dir string, record modelRecord) error {
	for _, o := range record.Objects {
		path := filepath.Join(dir, filepath.FromSlash(o.Path))
		if o.folder() {
			if err := os.MkdirAll(path, 0o700); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("'%s' is a file and a folder: %w", o.Path, err)
		}
		if err := link(r.objects.path(o.SHA256), path); err != nil {
			return err
		}
	}
	return nil
}

// link makes a hard link, or a copy where the file system has none or no more.
func link(from, to string) error {
	err := os.Link(from, to)
	if err == nil || !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	_, err = out.ReadFrom(in)
	return errors.Join(err, out.Close())
}

// hide takes a model that is gone out of the view.
func (r *repository) hide(name string) error {
	if err := os.Remove(filepath.Join(r.view(), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.retire(name)
	delete(r.trees, name)
	delete(r.manifest.Models, name)
	return nil
}

func (r *repository) retire(name string) {
	if old, ok := r.trees[name]; ok {
		r.retired[old] = time.Now()
	}
}

// sweep removes trees that no version can be loaded from any more.
func (r *repository) sweep() error {
	var errs []error
	for tree, since := range r.retired {
		if time.Since(since) >= r.cfg.Keep {
			errs = append(errs, os.RemoveAll(filepath.Join(r.dir, "trees", tree)))
			delete(r.retired, tree)
		}
	}
	return errors.Join(errs...)
}

// save writes the manifest.
func (r *repository) save() error {
	text, err := json.MarshalIndent(&r.manifest, "", " ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(r.dir, "manifest.json"), text, filepath.Join(r.dir, "tmp"))
}

// names are the models that are in the view.
func (r *repository) names() []string { return slices.Sorted(maps.Keys(r.trees)) }

func (r *repository) closeBucket() {
	if r.open == nil {
		return
	}
	if err := r.open.Close(); err != nil {
		r.log.Warn(fmt.Sprintf("closing %s", r.location), "error", err)
	}
	r.open = nil
}
