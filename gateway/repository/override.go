package repository

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// Override is what a load call brings in place of what the repository holds. The zero
// value brings nothing.
// Source: the parameters "config" and "file:<path>" of the model repository extension.
type Override struct {
	// Config is a ModelConfig as JSON; nil: the folder's own.
	Config *string
	// Files are a whole model folder, by their paths in it ("1/model.onnx"); the
	// repository's folder is not looked at then. They need Config. The bytes are never
	// changed any more: a load goes on when its caller leaves.
	Files map[string][]byte

	written *callFiles // what Files were, once they are in a folder
}

func (o *Override) empty() bool { return o.Config == nil && !o.hasFiles() }

func (o *Override) hasFiles() bool { return len(o.Files) > 0 || o.written != nil }

// ensemble says that the call makes the model one, as far as its config can be read.
func (o *Override) ensemble(name string) bool {
	cfg, err := o.parse(name)
	return err == nil && isEnsemble(cfg)
}

// parse reads the config of a load call.
func (o *Override) parse(name string) (*configpb.ModelConfig, error) {
	if o.Config == nil {
		if o.hasFiles() {
			return nil, infer.Errorf(infer.InvalidArg, "Load parameter 'config' must be specified for model file override")
		}
		return nil, nil
	}
	if int64(len(*o.Config)) > modelconfig.MaxSize {
		return nil, infer.Errorf(infer.InvalidArg, "Invalid config override: %d bytes, the most is %d", len(*o.Config), modelconfig.MaxSize)
	}
	cfg := &configpb.ModelConfig{}
	if err := protojson.Unmarshal([]byte(*o.Config), cfg); err != nil {
		// the library varies a space in its texts, so that nobody compares them
		text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
		return nil, infer.Errorf(infer.InvalidArg, "Invalid config override: %s", text)
	}
	return cfg, nil
}

// scratch is where files of load calls are kept: a folder of this process alone, which
// is locked as long as it lives. The first use makes it, and removes what processes left
// behind that were killed.
type scratch struct {
	parent string // "": the system's folder for temporary files

	mu   sync.Mutex
	dir  string   // mu; "": not made yet
	lock *os.File // mu
}

const scratchLock = "lock"

// folder makes an empty folder.
func (s *scratch) folder() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == "" {
		if err := s.openLocked(); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp(s.dir, "model-")
	if err != nil {
		return "", fmt.Errorf("making a folder for the model's files: %w", plain(err))
	}
	return dir, nil
}

func (s *scratch) root() string {
	parent := s.parent
	if parent == "" {
		parent = os.TempDir()
	}
	return filepath.Join(parent, "sluice-"+strconv.Itoa(os.Getuid()))
}

// claim makes the parent of all processes' folders where it is not there, and holds it
// until the file is closed: who makes a folder, or removes one, is alone with it.
func (s *scratch) claim(make bool) (*os.File, error) {
	root := s.root()
	if make {
		if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	// in a folder that all may write to, somebody else may have been first
	info, err := os.Lstat(root)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("'%s' is not a folder of this user alone", root)
	}
	f, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	if err := flock(f, syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func (s *scratch) openLocked() error {
	root, err := s.claim(true)
	if err != nil {
		return fmt.Errorf("making the folder for model files: %w", err)
	}
	defer root.Close()
	s.sweep()
	dir, err := os.MkdirTemp(s.root(), "gateway-")
	if err != nil {
		return fmt.Errorf("making the folder for model files: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, scratchLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		if err = flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			err = errors.Join(err, lock.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("locking the folder for model files: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	s.dir, s.lock = dir, lock
	return nil
}

// sweep removes the folders of processes that are gone: nobody holds their locks. The
// parent is claimed.
func (s *scratch) sweep() {
	dirs, err := filepath.Glob(filepath.Join(s.root(), "gateway-*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		lock, err := os.Open(filepath.Join(dir, scratchLock))
		if errors.Is(err, os.ErrNotExist) { // its maker was killed
			_ = os.RemoveAll(dir)
			continue
		}
		if err != nil {
			continue
		}
		if flock(lock, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir) // the next one tries again
		}
		_ = lock.Close()
	}
}

// clean removes what a process before left behind, where there is anything.
func (s *scratch) clean() {
	root, err := s.claim(false)
	if err != nil {
		return // there is nothing of ours; a load call says what is wrong
	}
	defer root.Close()
	s.sweep()
}

// close removes the folder.
func (s *scratch) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == "" {
		return nil
	}
	err := errors.Join(os.RemoveAll(s.dir), s.lock.Close())
	s.dir = ""
	return err
}

// Bounds of a load call's files. A path is as deep as the folders of a repository may be:
// each level takes a descriptor while it is removed.
const (
	maxOverrideFiles = 4096
	maxOverridePath  = 1024 // bytes
)

// check says what is wrong with the paths of a load call's files.
func (o *Override) check() error {
	if n := len(o.Files); n > maxOverrideFiles {
		return infer.Errorf(infer.InvalidArg, "Invalid file parameters: %d files, there may be at most %d", n,
			maxOverrideFiles)
	}
	for given := range o.Files {
		name := inFolder(given)
		shown := strings.ToValidUTF8(given[:min(len(given), 128)], "")
		switch depth := strings.Count(name, "/"); {
		case !modelconfig.SafePath(name) || path.Clean(name) != name || name == ".":
			return infer.Errorf(infer.InvalidArg, "Invalid file parameter 'file:%s': it must stay within model directory", shown)
		case len(name) > maxOverridePath:
			return infer.Errorf(infer.InvalidArg,
				"Invalid file parameter 'file:%s': its path has %d bytes, it may have at most %d", shown, len(name),
				maxOverridePath)
		case depth > maxDepth:
			return infer.Errorf(infer.InvalidArg,
				"Invalid file parameter 'file:%s': it lies in %d folders, there may be at most %d", shown, depth, maxDepth)
		}
	}
	return nil
}

// inFolder is the path in the model's folder of a file that a load call brings: Triton takes
// "/1/model.py" for "1/model.py".
func inFolder(name string) string { return strings.TrimPrefix(name, "/") }

// write lays the files of a load call, which were checked, down in dir, and nowhere else.
func (o *Override) write(ctx context.Context, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("writing the model's files: %w", plain(err))
	}
	defer root.Close()
	for given, data := range o.Files {
		name := inFolder(given)
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := root.MkdirAll(path.Dir(name), 0o700); err == nil {
			err = root.WriteFile(name, data, 0o600)
			if err == nil {
				continue
			}
			return infer.Errorf(infer.InvalidArg, "failed to write '%s': %w", name, plain(err))
		}
		return infer.Errorf(infer.InvalidArg, "failed to write '%s': its folder can't be made", name)
	}
	return nil
}
