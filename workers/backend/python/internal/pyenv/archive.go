package pyenv

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	mostBytes = 64 << 30 // of an environment's files
	mostFiles = 1 << 20
	// An archive of less than a hundredth of freeBytes may have that many, and others a hundred
	// times their own size.
	mostRatio = 100
	freeBytes = 1 << 30
	fixTime   = 5 * time.Minute // for conda-unpack
)

// done is the file that says that an environment is whole.
const done = ".sluice-complete"

// unpacked is the folder of an archive's environment, which is unpacked once for its content.
func unpacked(ctx context.Context, archive, cache string, variables []string) (string, error) {
	sum, err := contentOf(archive, cache)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, "envs", sum)
	err = once(ctx, folder, func(temporary string) error {
		if err := unpack(ctx, archive, temporary); err != nil {
			return err
		}
		return nil
	}, func() error {
		program := filepath.Join(folder, "bin", "conda-unpack")
		if _, err := os.Stat(program); err != nil {
			return nil
		}
		interpreter, err := interpreterOf(folder)
		if err != nil {
			return err
		}
		if _, err := Run(ctx, fixTime, variables, interpreter, program); err != nil {
			return fmt.Errorf("conda-unpack: %w", err)
		}
		return nil
	})
	return folder, err
}

// once makes a folder whole, unless it is so: fill writes it elsewhere, and when it has its name
// finish is called. Other processes wait meanwhile, until ctx ends.
func once(ctx context.Context, folder string, fill func(temporary string) error, finish func() error) error {
	if err := private(filepath.Dir(folder)); err != nil {
		return err
	}
	unlock, err := lock(ctx, folder+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(folder, done)); err == nil {
		return nil
	}
	temporary := folder + ".new"
	if err := errors.Join(os.RemoveAll(folder), os.RemoveAll(temporary), os.Mkdir(temporary, 0o700)); err != nil {
		return err
	}
	err = fill(temporary)
	if err == nil {
		err = os.Rename(temporary, folder)
	}
	if err == nil {
		err = finish()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, done), nil, 0o600)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temporary), os.RemoveAll(folder))
	}
	return nil
}

// private makes a folder that nobody else may write to, and refuses one that others may.
func private(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	st, err := os.Lstat(folder)
	if err != nil {
		return err
	}
	s, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || st.Mode().Perm()&0o022 != 0 || !ok || int(s.Uid) != os.Geteuid() {
		return errors.New("the cache folder may be written to by others: name another by --backend-config=python,cache-directory=")
	}
	return nil
}

// lock waits for the lock of a file.
func lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // which unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another process unpacks it: %w", context.Cause(ctx)), f.Close())
		}
	}
}

// identity tells one state of a file from others: device, inode, size and time of change.
func identity(name string) string {
	st, err := os.Stat(name)
	if err != nil {
		return name
	}
	s, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return name
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x", name, s.Dev, s.Ino, s.Size, s.Mtim.Nano())
}

// contentOf is the SHA-256 of a file, remembered beside the environments by the file's identity.
func contentOf(name, cache string) (string, error) {
	key := sha256.Sum256([]byte(identity(name)))
	if err := private(filepath.Join(cache, "envs")); err != nil {
		return "", err
	}
	known := filepath.Join(cache, "envs", "known", hex.EncodeToString(key[:]))
	if b, err := os.ReadFile(known); err == nil && len(b) == 2*sha256.Size {
		return string(b), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if err := os.MkdirAll(filepath.Dir(known), 0o700); err != nil {
		return "", err
	}
	return sum, os.WriteFile(known, []byte(sum), 0o600)
}

// unpack unpacks an archive into a folder that is there. Nothing is written outside of it.
func unpack(ctx context.Context, archive, folder string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	var plain io.Reader = f
	switch {
	case strings.HasSuffix(archive, ".tar.gz"), strings.HasSuffix(archive, ".tgz"):
		if plain, err = gzip.NewReader(f); err != nil {
			return fmt.Errorf("it is no gzip file: %w", err)
		}
	case strings.HasSuffix(archive, ".tar.zst"):
		z, err := zstd.NewReader(f, zstd.WithDecoderMaxMemory(1<<30), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return fmt.Errorf("it is no zstd file: %w", err)
		}
		defer z.Close()
		plain = z
	case strings.HasSuffix(archive, ".tar"):
	default:
		return errors.New("an archive is a .tar.gz, .tgz, .tar.zst or .tar")
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	most := min(int64(mostBytes), max(freeBytes, mostRatio*st.Size()))
	links, err := unpackTar(ctx, tar.NewReader(plain), root, most)
	if err != nil {
		return err
	}
	for _, name := range links { // by way of others a link may lead elsewhere than its text says
		if _, err := root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the archive's '%s': a link that leads out of the archive is refused", name)
		}
	}
	return nil
}

// unpackTar writes at most so many bytes of files, and lists the links.
func unpackTar(ctx context.Context, t *tar.Reader, root *os.Root, most int64) (links []string, err error) {
	left := most
	for files := 0; ; files++ {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return links, nil
		case err != nil:
			return nil, fmt.Errorf("the archive can't be read: %w", err)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case files >= mostFiles:
			return nil, fmt.Errorf("the archive has more than %d files", mostFiles)
		}
		if left -= h.Size; left < 0 {
			return nil, fmt.Errorf("the archive has more than %d bytes", most)
		}
		if h.Typeflag == tar.TypeSymlink {
			links = append(links, path.Clean(h.Name))
		}
		if err := unpackOne(t, h, root); err != nil {
			return nil, fmt.Errorf("the archive's '%s': %w", h.Name, err)
		}
	}
}

// unpackOne writes one file. What would lead out of the folder is refused, by its name and by root.
func unpackOne(t *tar.Reader, h *tar.Header, root *os.Root) error {
	name := path.Clean(h.Name)
	switch { // the reasons are in the words of libarchive, as in Triton's log
	case path.IsAbs(name):
		return errors.New("a name that leads out of the archive is refused: Path is absolute")
	case name == ".." || strings.HasPrefix(name, "../"):
		return errors.New("a name that leads out of the archive is refused: Path contains '..'")
	}
	if name == "." {
		return nil
	}
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if st, err := root.Lstat(dir); err != nil || !st.IsDir() {
			return errors.New("a file below a link is refused")
		}
	}
	mode := os.FileMode(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o700)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		to := path.Join(path.Dir(name), h.Linkname)
		if path.IsAbs(h.Linkname) || to == ".." || strings.HasPrefix(to, "../") {
			return errors.New("a link that leads out of the archive is refused")
		}
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(path.Clean(h.Linkname), name)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return errors.New("only files, folders and links are taken")
}
