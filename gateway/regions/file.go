package regions

import (
	"errors"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// reserved are prefixes of keys that no client may name: the memory of the original's
// Python backend, and ours.
// Source: the original's fix of CVE-2025-23319 and its siblings.
var reserved = [...]string{"triton_python_backend_shm_region_", "sluice_"}

// maxKey is the longest name that a file can have.
const maxKey = 255

// errOpen is the original's word on a key that can't be opened, whatever the reason: what
// exists on this host is nobody's business.
func errOpen(key string) error {
	return infer.Errorf(infer.Internal, "Unable to open shared memory region: '%s'", strings.ToValidUTF8(key, "\uFFFD"))
}

// errArgs is the original's word on a range that its file has not.
func errArgs(name string) error {
	return infer.Errorf(infer.InvalidArg, "failed to register shared memory region '%s': invalid args", name)
}

// open opens what a key stands for. It is one file of the folder itself, and text: lists
// of regions repeat it, to others of the same owner too.
// Source: shm_open(3), which passes over slashes before the name.
func (r *Registry) open(key string) (*os.File, error) {
	name := strings.TrimLeft(key, "/")
	if name == "" || name == "." || name == ".." || len(name) > maxKey || strings.ContainsAny(name, "/\x00") || !utf8.ValidString(name) {
		return nil, errOpen(key)
	}
	for _, p := range reserved {
		if strings.HasPrefix(name, p) {
			return nil, infer.Errorf(infer.InvalidArg, "shared memory key '%s' is reserved: keys must not begin with '%s'", key, p)
		}
	}
	if !r.listed(name) {
		return nil, infer.Errorf(infer.InvalidArg, "shared memory key '%s' is not allowed: --client-shm-prefix names what keys may begin with", key)
	}
	fd, err := unix.Openat(int(r.folder.Fd()), name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errOpen(key)
	}
	return os.NewFile(uintptr(fd), "region"), nil
}

func (r *Registry) listed(name string) bool {
	for _, p := range r.cfg.Prefixes {
		if strings.HasPrefix(name, strings.TrimLeft(p, "/")) {
			return true
		}
	}
	return len(r.cfg.Prefixes) == 0
}

// check looks at an open file: memory, as large as the range says, that peer may write.
// what names the region or its key for errors.
func check(f *os.File, peer infer.Peer, size int64, errRange, errFile error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return errFile
	}
	fault := errFile
	failed := raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		var fs unix.Statfs_t
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		switch err = errors.Join(err, unix.Fstat(int(fd), &st), unix.Fstatfs(int(fd), &fs)); {
		case err != nil, st.Mode&unix.S_IFMT != unix.S_IFREG, fs.Type != unix.TMPFS_MAGIC, flags&unix.O_ACCMODE != unix.O_RDWR:
		case !mayWrite(&st, peer):
		case size > st.Size:
			fault = errRange
		default:
			fault = nil
		}
	})
	if failed != nil {
		return errFile
	}
	return fault
}

// mayWrite says that a user could open a file itself; one that is not known could.
func mayWrite(st *unix.Stat_t, peer infer.Peer) bool {
	return !peer.Known || peer.UID == 0 || peer.UID == st.Uid || st.Mode&unix.S_IWOTH != 0
}
