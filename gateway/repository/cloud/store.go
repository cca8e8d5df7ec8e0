package cloud

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// Defaults of Config.
const (
	defaultFetchers = 8
	defaultTries    = 4
	defaultPause    = 250 * time.Millisecond
	defaultStall    = 30 * time.Second
	defaultKeep     = 10 * time.Minute
	defaultForget   = 30 * 24 * time.Hour
)

// Config is how a Store works. What is 0 has a default.
type Config struct {
	// Directory is --cloud-cache-directory. TRITON_AWS_MOUNT_DIRECTORY,
	// TRITON_GCS_MOUNT_DIRECTORY and TRITON_AZURE_MOUNT_DIRECTORY come before it, each
	// for its scheme.
	Directory string
	MaxBytes  int64                            // --cloud-cache-byte-size: of all objects in the folder; 0: no bound
	Env       func(name string) (string, bool) // looks a variable of the environment up
	Open      Open                             // opens buckets; cloud/drivers has it
	Log       *slog.Logger

	Fetchers int           // objects fetched at one time, for each repository
	Hashers  int           // objects whose bytes are compared at one time
	Tries    int           // for a listing or an object
	Pause    time.Duration // before the second try; it doubles
	Stall    time.Duration // longest time without a byte or a key
	Keep     time.Duration // how long a tree stays after its model was replaced
	Forget   time.Duration // how long copies of a repository stay that no server asks for
}

func (c *Config) defaults() {
	set := func(p *time.Duration, d time.Duration) {
		if *p <= 0 {
			*p = d
		}
	}
	set(&c.Pause, defaultPause)
	set(&c.Stall, defaultStall)
	set(&c.Keep, defaultKeep)
	set(&c.Forget, defaultForget)
	if c.Fetchers < 1 {
		c.Fetchers = defaultFetchers
	}
	if c.Hashers < 1 {
		c.Hashers = max(1, runtime.GOMAXPROCS(0)/2)
	}
	if c.Tries < 1 {
		c.Tries = defaultTries
	}
}

// Store keeps copies of repositories. New makes it, Close gives the folders free; the
// copies stay for the next server.
type Store struct {
	cfg Config

	mu           sync.Mutex
	objects      map[string]*objects    // mu; by cache folder
	repositories map[string]*repository // mu; by path as it was given
}

// New makes a Store. Nothing is opened or made before the first Sync.
func New(cfg Config) *Store {
	cfg.defaults()
	return &Store{cfg: cfg, objects: map[string]*objects{}, repositories: map[string]*repository{}}
}

// Remote says that a repository's path is one of a cloud.
func (s *Store) Remote(path string) bool { return Remote(path) }

// Sync brings the models of a repository, or the one named model, to a folder of this
// machine, and gives that folder; see repository.Stores. Models that could not be copied
// are joined in the error; the folder is given with it, unless it was one model that was
// asked for, and holds the others and the last whole copies. When the cloud can't be reached, the copies of the cache are
// checked and shown, a warning is logged, and there is no error unless there are none.
func (s *Store) Sync(ctx context.Context, path, model string) (string, error) {
	r, err := s.repository(path)
	if err != nil {
		return "", err
	}
	if model != "" {
		if err := checkKey(model, ""); err != nil {
			return "", fmt.Errorf("model name '%s': %w", model, err)
		}
	}
	if err := r.take(ctx); err != nil {
		return "", err
	}
	defer func() { <-r.busy }()
	if err := r.sync(ctx, model); err != nil {
		if model != "" {
			return "", err // not the last copy, which is not what the cloud has now
		}
		return r.view(), err
	}
	return r.view(), nil
}

// repository finds or claims the repository of a path.
func (s *Store) repository(path string) (*repository, error) {
	l, err := Parse(path)
	if err != nil {
		return nil, err
	}
	dir, err := s.directory(l.Scheme)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.repositories[path]; ok {
		return r, nil
	}
	o := s.objects[dir]
	if o == nil {
		if o, err = openObjects(dir); err != nil {
			return nil, fmt.Errorf("cloud cache folder: %w", err)
		}
		s.objects[dir] = o
	}
	r, err := claim(path, l, &s.cfg, o)
	if err != nil {
		return nil, fmt.Errorf("cloud cache folder: %w", err)
	}
	s.repositories[path] = r
	return r, nil
}

// directory is the cache folder for a scheme.
func (s *Store) directory(scheme string) (string, error) {
	name := map[string]string{S3: "TRITON_AWS_MOUNT_DIRECTORY", GCS: "TRITON_GCS_MOUNT_DIRECTORY", Azure: "TRITON_AZURE_MOUNT_DIRECTORY"}[scheme]
	if dir, ok := s.cfg.Env(name); ok && dir != "" {
		return filepath.Abs(dir)
	}
	if s.cfg.Directory != "" {
		return filepath.Abs(s.cfg.Directory)
	}
	if dir, ok := s.cfg.Env("XDG_CACHE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "sluice", "cloud"), nil
	}
	if dir, ok := s.cfg.Env("HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, ".cache", "sluice", "cloud"), nil
	}
	return "", errors.New("there is no folder for copies of the cloud's models: give --cloud-cache-directory")
}

// Close closes the buckets and gives the folders free for another server. It waits for
// a Sync that is under way until ctx ends.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	all := s.repositories
	s.repositories = map[string]*repository{}
	s.mu.Unlock()
	var errs []error
	for _, r := range all {
		if err := r.take(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		r.closeBucket()
		errs = append(errs, r.lock.Close())
		<-r.busy
	}
	return errors.Join(errs...)
}
